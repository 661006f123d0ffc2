"""The speed model: a decoder's speed-up from step costs and acceptance, and a search by it."""
