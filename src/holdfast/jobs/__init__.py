"""What callers of any kind may ask of jobs."""
