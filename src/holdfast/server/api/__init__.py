"""Our own API under /api/v1: what the dashboard, remote apps, agents and scripts talk to.

`operations` lists every call. `requests` are the bodies and queries, `jobs.views.pages` the answers; `openapi` makes
the OpenAPI document from all of them. Must not make a sentence: views do.
"""
