"""Verdicts: exactness, fairness, paired intervals, quality."""
