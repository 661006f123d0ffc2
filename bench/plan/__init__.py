"""What a study needs before it runs: gigabytes and hours."""
