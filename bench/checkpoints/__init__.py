"""What studies need on this disk, and random stand-ins for it."""
