"""The first half hour on a GPU: stages from kernels to a profile, which stop at the first failure.

A stage runs what exists, in a process of its own: a card that is lost in one takes nothing along.
"""
