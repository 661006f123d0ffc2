"""Recipes that trained the embedded models; `decoders.tiny.recipes.stages` runs them."""
