"""Makes every figure of a run from its facts: speed-ups, TV, quality, fairness, verdict marks."""
