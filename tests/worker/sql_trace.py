"""What the SQLite engine is asked, statement by statement, once all around it is calm."""

import re
import time
from typing import Any

from holdfast import Settings
from holdfast.engines.sqlite.reads import SQL
from holdfast.engines.topics import queue_topic
from tests.support.given import until

CALM = Settings(look_seconds=3_600, upkeep_seconds=3_600, poll_seconds=3_600, grace_seconds=0.1)
"""Upkeep looks once, when a worker starts, and an idle worker waits for news: what is counted is the job's own."""

QUIET_SECONDS = 0.05
"""For how long nothing may have been asked of the store before the counting begins."""

AROUND = 8
"""How many transactions there may be around the steps of a job, however many those are: submit, claims, its end."""


def pattern(statement):
    """What a statement looks like in a trace: with its values put in, and without what is said after it."""
    statement = statement.partition(";\n")[0].removesuffix(";")
    return re.compile(re.sub(r":[a-z_]+", ".*", re.escape(statement)) + ";?", re.DOTALL)


NAMES = {name: pattern(statement) for name, statement in vars(SQL).items()}


class Trace:
    """The statements of the writer, and of the readers that a worker asks, by their names."""

    def __init__(self):
        self.written, self.read = [], []

    async def watch(self, engine):
        def tell(into):
            return lambda text: into.append(next(name for name, seen in NAMES.items() if seen.fullmatch(text)))

        engine._writer.connection.set_trace_callback(tell(self.written))
        for reader in ("look", "walk"):
            await engine._look(reader, lambda db: db.set_trace_callback(tell(self.read)))

    def everything(self):
        return [*self.written, *self.read]

    def transactions(self):
        """Each transaction as the statements between its two ends."""
        found: list[Any] = []
        for name in self.written:
            if name == "begin":
                found.append([])
            elif name not in ("commit", "lazily", "durably"):
                found[-1].append(name)
        return found


async def calm(app, trace):
    """Wait until a worker's start is over: upkeep has tidied, the worker waits for news, and all is quiet."""
    seen, since = -1, 0.0

    def is_calm():
        nonlocal seen, since
        if seen != len(trace.everything()):
            seen, since = len(trace.everything()), time.monotonic()
        waits = queue_topic("default") in app.engine._wakeups._waiting
        return "old" in trace.written and waits and time.monotonic() > since + QUIET_SECONDS

    await until(is_calm)
    trace.written.clear(), trace.read.clear()
