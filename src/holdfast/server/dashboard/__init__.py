"""The dashboard over HTTP: its pages, its files, and logging in. Its sources are in `dashboard/`, built into `static/`.

Must not read a job: the pages get everything from `/api/v1`.
"""
