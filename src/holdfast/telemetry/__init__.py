"""Metrics for Prometheus: what this process counts, and what the store holds. Must not change a job."""
