"""Draft trees: which codes are drafted from the drafter's distributions, and how they hang
together."""
