"""Image tokenizers: codes -> images (and back, for training the embedded models)."""
