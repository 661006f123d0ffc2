"""The report of a run: texts, figures, one HTML page, and a page per prompt."""
