"""The recipes of the embedded weights: `bench train recipe=tiny`, `large`, `clip`. They are part of
the checkout, and not of the installed package."""
