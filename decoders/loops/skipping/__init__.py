"""Loops that skip a verification now and then (VVS)."""
