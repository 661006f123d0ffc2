"""Another library's decoding on our weights: transformers' `generate`."""
