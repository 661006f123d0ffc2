"""A study as it runs: schedule, calls of decoders, summary."""
