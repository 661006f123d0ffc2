"""Two runs, or two decoders of one, paired image by image: told apart, or not."""
