"""The configuration: its schema, Hydra's edge, and what can be chosen."""
