"""What the tests of the file engine share: a person who edits a checkpoint, and a file that a kill has left."""

from pathlib import Path

import pytest

from holdfast.conformance.given import HOUR, StoreClock, claimed, in_state, job, step
from holdfast.core.errors import StoreDamaged
from holdfast.core.keys import digest
from holdfast.core.model import Job, State, Where
from holdfast.engines.file import FileEngine

TYPE, ARGS = "book.write", '[{"chapter":7}]'


class Desk:
    """One checkpoint file, the engine on it, and a person who edits it between two runs."""

    def __init__(self, path: Path, clock: StoreClock, run) -> None:
        self.path, self.clock, self.run = path, clock, run
        self.engine = FileEngine(path, clock)
        run(self.engine.open())

    def job(self, state: State, **fields) -> Job:
        plain = {"type": TYPE, "args": ARGS, "digest": digest(TYPE, ARGS)}
        return self.run(in_state(self.engine, self.clock, state, **plain | fields))

    def edit(self, *swaps: tuple[str, str]) -> None:
        """Close, edit and open again an hour later. Each text must be there, and all of it is swapped."""
        self.run(self.engine.close())
        data = self.path.read_bytes()
        for old, new in swaps:
            assert old.encode() in data
            data = data.replace(old.encode(), new.encode())
        self.path.write_bytes(data)
        self.clock.advance(HOUR)
        self.engine = FileEngine(self.path, self.clock)
        self.run(self.engine.open())

    def refused(self, *swaps: tuple[str, str]) -> str:
        """Edit, and get the one line that refuses it. The file stays as the person left it."""
        with pytest.raises(StoreDamaged) as caught:
            self.edit(*swaps)
        left = self.path.read_text()
        assert all(new in left for _, new in swaps)
        line = str(caught.value)
        assert line.startswith(f"{self.path}: line ")
        assert line.endswith("; the file was not changed: correct it, or move it away")
        assert "\n" not in line
        return line

    def now(self, job: Job) -> Job:
        [found] = self.run(self.engine.get([job.id]))
        return found

    def last(self, job: Job):
        entries = self.run(self.engine.history(job.id))
        assert [entry.version for entry in entries] == list(range(1, self.now(job).version + 1))
        return entries[-1]


def status(old: str, new: str) -> tuple[str, str]:
    return f'"status": "{old}"', f'"status": "{new}"'


def states(engine: FileEngine, run) -> list[State]:
    return [one.state for one in run(engine.find(Where()))]


def left_running(path: Path, clock: StoreClock, run) -> None:
    """A file whose process was killed while a job ran."""

    async def main():
        engine = FileEngine(path, clock)
        await engine.open()
        held = await claimed(engine, clock)
        await engine.record([step(held)])
        await engine.insert([job(clock)])
        await engine.close()  # Which lets go of the lock, as a kill does, and writes nothing.

    run(main())
