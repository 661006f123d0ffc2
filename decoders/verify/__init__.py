"""Verifiers: which drafts are committed."""
