"""A table of the user's own beside the jobs, and workers in processes of their own that write to it."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import psycopg

from holdfast import App
from holdfast.core.codec import canonical
from holdfast.jobs.service import JobRequest


def sql(path, statement, *params):
    """What a connection of the user's own sees."""
    if isinstance(path, str):
        with psycopg.connect(path, autocommit=True) as connection:
            found = connection.execute(statement, params)
            return found.fetchall() if found.description else []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement, params).fetchall()


def ledger(path):
    place = "ctid" if isinstance(path, str) else "rowid"
    return [row[0] for row in sql(path, f"select n from ledger order by {place}")]


class Stage:
    """A folder with a store and a user's table, and workers in processes of their own."""

    def __init__(self, folder, program, url=None):
        self.folder, self.path = folder, folder / "jobs.db"
        (folder / "program.py").write_text(program)
        self.url = url or f"sqlite:///{self.path}"
        self.app = App(self.url)
        self.workers = []

    def worker(self, **env):
        process = subprocess.Popen(
            [sys.executable, "program.py"],
            cwd=self.folder,
            env={**os.environ, "HOLDFAST_URL": self.url, **env},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.workers.append(process)
        assert process.stdout.readline().startswith("worker ")
        return process

    async def submit(self, type, *args):
        (accepted,) = await (await self.app.open()).submit([JobRequest(type=type, args=canonical(args))])
        return await self.app.run(accepted.id)

    async def end(self):
        for process in self.workers:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(10)
            process.stdout.close()
        await self.app.close()
