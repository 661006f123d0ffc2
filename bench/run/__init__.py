"""A study as it runs: its session, calls of decoders, summary."""
