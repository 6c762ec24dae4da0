"""Jobs, queues, workers and stores as a person reads them: frozen values and plain text, for every kind of caller."""
