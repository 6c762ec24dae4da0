"""Rescues jobs of lost workers and cleans up the store."""
