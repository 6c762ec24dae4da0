"""Large values and files, kept outside the store's rows: the stores that hold them, and `Blob`."""
