"""Drafters: cheap models that propose the next codes."""
