"""How jobs are rescued and tidied."""
