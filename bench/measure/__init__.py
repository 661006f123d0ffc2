"""What a run measures besides images: time, memory, and the state of the machine."""
