"""How codes are produced: decoding loops, drafters, trees, acceptance rules, models.

Nothing here knows about the harness: this package imports neither ``bench`` nor Hydra, so a decoder
can be used (and tested) on its own. ``decoders.api`` holds the contracts; start reading there.
"""
