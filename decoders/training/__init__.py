"""Training of drafters: losses and metrics, for the embedded models and for official ones."""
