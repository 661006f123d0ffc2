"""Errors, files and versions, which every folder of bench/ uses. Imports no other of them."""
