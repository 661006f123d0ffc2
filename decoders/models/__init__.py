"""Targets, image tokenizers and text encoders, and the code that loads their checkpoints."""
