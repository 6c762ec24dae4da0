"""What the HTTP API and the dashboard show, page by page, as typed values with every sentence already made.

Each module has the types of one kind of page and the functions that read them. Must not change anything or know HTTP.
"""
