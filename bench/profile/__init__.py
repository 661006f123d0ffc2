"""Where a decoding step's time goes."""
