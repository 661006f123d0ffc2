"""Records that others can check: run.json, `bench publish`, `bench leaderboard`."""
