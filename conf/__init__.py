"""Hydra configuration groups (YAML), importable as `pkg://conf` so an installed copy finds them."""
