"""Everything that callers of any kind can ask of jobs."""
