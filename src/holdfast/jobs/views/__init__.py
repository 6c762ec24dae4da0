"""Jobs, queues, workers and stores as people read them: frozen values and plain text, for every kind of caller."""
