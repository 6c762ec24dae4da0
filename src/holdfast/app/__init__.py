"""What users write: App, jobs, steps, waits, runs, and lists of items."""
