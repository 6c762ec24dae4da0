"""Durable jobs and pipelines for long-running AI work, in plain Python."""
