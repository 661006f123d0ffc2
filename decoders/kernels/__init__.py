"""Fused steps for GPUs, each with the tensor code that it must equal.

`tree_attention` (rotation, cache append and masked attention of a draft tree), `choose` (which
attention is fastest here, by measurement). Triton is imported only when a kernel is asked for.
"""
