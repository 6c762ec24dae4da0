"""What a job is and may become. Pure: no I/O, no clock, no randomness, no async."""
