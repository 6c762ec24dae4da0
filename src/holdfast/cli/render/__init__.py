"""How the command line draws what `jobs.views` tells: tables, bars, colours, the lifecycle. Must not ask a store."""
