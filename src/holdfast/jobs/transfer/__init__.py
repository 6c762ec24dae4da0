"""Jobs that go from one store to another: move, drain, archive."""
