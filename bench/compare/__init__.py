"""Compares a run with the papers' numbers (compare.py), and runs with each other (diff.py)."""
