"""Networks without a family: the transformer of targets and drafters, and what it is made of."""
