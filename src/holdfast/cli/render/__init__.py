"""Draws what `jobs.views` returns: tables, bars, colours, the lifecycle. Must not read a store."""
