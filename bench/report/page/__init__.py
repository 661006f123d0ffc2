"""The report's page and the pages of single prompts."""
