"""A study as it runs: its contenders, its jobs, from prompts to rows."""
