"""Where jobs are kept: one contract (`contract`), and stores as unlike as a JSON file and a database."""
