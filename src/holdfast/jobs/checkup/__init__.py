"""The checkup of a store: what would break, as findings. Must not repair anything."""
