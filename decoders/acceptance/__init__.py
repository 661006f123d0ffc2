"""Acceptance rules: pure functions of (p, q, x). See METHODS sections 3 and 4."""
