"""What a run leaves on disk: rows, their identity, their folder."""
