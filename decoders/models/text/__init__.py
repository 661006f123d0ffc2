"""Text encoders: prompts -> left-padded features."""
