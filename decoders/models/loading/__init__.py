"""How checkpoints are found, read and checked, and our own files of weights."""
