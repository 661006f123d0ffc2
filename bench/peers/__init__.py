"""Ours beside another library on identical weights: transformers' `generate` and its assisted
generation, on the same machine, the same prompts and the same clock."""
