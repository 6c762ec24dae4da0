"""run_items: a list, a function and a checkpoint file."""
