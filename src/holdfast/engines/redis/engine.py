"""The Redis engine: the contract, on a server that many machines share.

Must not contain what an act does (`lua/`). Everything runs on one thread of the engine's own (`hub`), so that it can be
used from every loop and thread. What arrives while a call of its kind is under way goes into the next one: that is
group commit, without a timer.
"""

import asyncio
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from redis.exceptions import RedisError

from holdfast.core.errors import KeyConflict, LeaseLost, StoreClosed, StoreError, StoreFull
from holdfast.core.model import (
    OUTRUN,
    PAGE_LIMIT,
    Applied,
    Beat,
    Change,
    Conflict,
    Entry,
    Inserted,
    Job,
    Lease,
    Presence,
    Record,
    Recorded,
    State,
    Step,
    Time,
    Where,
)
from holdfast.engines.bell import Bell
from holdfast.engines.contract import (
    PROMOTE_LIMIT,
    PRUNE_LIMIT,
    WORKER,
    Clock,
    Engine,
    Guarantees,
    at_most,
    check_changes,
    check_jobs,
    check_record,
    check_steps,
    check_worker,
    key_conflict,
    queues_of,
    until_due,
)
from holdfast.engines.hub import Hub, Line
from holdfast.engines.lane import Ticket
from holdfast.engines.redis import rows
from holdfast.engines.redis.live import News, Seen, beat_of, beat_words
from holdfast.engines.redis.place import Place, place_of, with_app
from holdfast.engines.redis.scripts import script
from holdfast.engines.redis.store import Health, Store, check_server, health_of, plainly
from holdfast.engines.redis.wire import Way, Wire
from holdfast.engines.tables import matches

T = TypeVar("T")

DEAF_POLL_SECONDS = 1.0
"""How often a waiter looks by itself while no news come in."""

CLOCK_SECONDS = 5.0
"""How long the server's clock is followed by our own before it is asked again."""

CLOCK_SET_MS = 500
"""An answer that is so far behind what we thought means that the server's clock was set back."""

DUE_SECONDS = 0.05
"""For how long what a claim told of the next due job is good for the wait after it."""

CALL_WEIGHT = 50
"""How much work goes into one call of a script, counted in plain changes: the server does nothing else meanwhile."""

CALL_SIZE = 4 << 20
"""How many bytes go into one call."""

PAGE = 50
"""How many jobs one call of a script takes, promotes, prunes or reads at most."""

FIND_PAGE = 40
"""How many jobs one call looks at to find some: it puts several indexes in order."""

ROUNDS = 200
"""How many calls one act may consist of, as a bound that is never reached."""

SCRATCH = "holdfast-scratch-"
"""How the apps of tests begin."""

SCRAP_PAGE = 500

SILENT_LEASES = 20
"""The trace of a worker that has been silent for so many leases, and holds nothing, is removed."""

TIDY_SECONDS = 60.0
"""How often traces of dead workers are looked for."""


class RedisEngine(Engine):
    """Jobs on a Redis or Valkey server, shared by many machines."""

    guarantees = Guarantees(
        name="redis",
        url="redis://host:6379/0",
        use="many machines, short history",
        durable="a killed process",
        processes="many machines",
        wakes="many machines",
        atomic_children=True,
        clock="the server's",
        limit="the server's memory; a power cut loses what its appendonly file had not got, about a second",
    )
    insert_at_once = 60
    look_seconds = 1.6

    def __init__(self, url: str) -> None:
        self._place: Place = place_of(url)
        self._bell = Bell()
        self._opening = threading.Lock()
        self._pid: int | None = None
        self._hub: Hub
        self._store: Store
        self._acts: Wire
        self._looks: Wire
        self._beats: Wire
        self._news: News
        self._lines: dict[str, Line]
        self._reset()

    def _reset(self) -> None:
        self._server = (0, 0.0, -CLOCK_SECONDS)
        self._due: tuple[tuple[str, ...], Time | None, float] = ((), None, -DUE_SECONDS)
        self._tidied_at = -TIDY_SECONDS

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "RedisEngine":
        """See Engine.from_url. Goes by the server's clock."""
        return cls(url)

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """See Engine.scratch: an app of its own."""
        return with_app(url, f"{SCRATCH}{secrets.token_hex(6)}")

    @classmethod
    async def scrap(cls, url: str) -> None:
        """See Engine.scrap."""
        place = place_of(url)
        if not place.app.startswith(SCRATCH):
            return

        async with _unopened(place) as wire:
            await wire.call("EXISTS", f"{place.tag}:store")  # a cluster leads us to the node that has it
            cursor: Any = b"0"
            while True:
                cursor, keys = await wire.call("SCAN", cursor, "MATCH", f"{place.tag}:*", "COUNT", SCRAP_PAGE)
                if keys:
                    await wire.call("UNLINK", *keys)
                if cursor == b"0":
                    break

    async def shift_clock(self, milliseconds: int) -> bool:
        """Move the clock of a test's store, and never of another one; False where that can't be."""
        if not self._place.app.startswith(SCRATCH):
            return False
        await self._read("HINCRBY", self._key("store"), "shift", milliseconds)
        self._server = (0, 0.0, -CLOCK_SECONDS)
        return True

    # Opening and closing.

    async def is_there(self) -> bool:
        """See Engine.is_there."""
        async with _unopened(self._place) as wire:
            return bool(await wire.call("EXISTS", self._key("store")))

    async def open(self) -> None:
        """See Engine.open."""
        with self._opening:
            if self._pid != os.getpid():
                self._start()
        try:
            await self._call(lambda: check_server(self._looks, self._place))
        except BaseException:
            await self.close()
            raise

    def _start(self) -> None:
        self._bell = Bell()
        self._reset()
        place = self._place
        self._hub = hub = Hub(place.shown, "holdfast-redis")
        self._store = store = Store(place)
        way = Way(place)
        self._acts, self._looks, self._beats = wires = [Wire(place, way, store.greet) for _ in range(3)]
        self._news = news = News(hub, place, way, store, self._bell.ring)
        hub.sockets = lambda: [*news.sockets(), *(socket for wire in wires for socket in wire.sockets())]
        self._lines = {
            "insert": Line(hub, self._run_inserts),
            "commit": Line(hub, self._run_commits),
            "record": Line(hub, self._run_records),
            "claim": Line(hub, self._run_each, limit=1),
            "turn": Line(hub, self._run_turns, at_once=2, limit=1),
            "look": Line(hub, self._run_each, at_once=8, limit=1),
            "beat": Line(hub, self._run_each, at_once=100, limit=1),
        }
        self._pid = os.getpid()

    async def close(self) -> None:
        """See Engine.close."""
        with self._opening:
            if self._pid != os.getpid():
                return
            self._pid = None

        async def last() -> None:
            await self._news.close()
            for wire in (self._acts, self._looks, self._beats):
                await wire.close()

        await asyncio.to_thread(self._hub.close, last)

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            why = "not open" if self._pid is None else "was opened before this process was forked"
            raise StoreClosed(f"{self._place.shown}: {why}; open it here first")
        if self._store.lost is not None:
            raise self._store.lost

    # The ways to the server.

    def _do(self, line: str, work: Any) -> Awaitable[Any]:
        self._check_open()
        return self._lines[line].do(work)

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        answer: T = await self._do("look", work)
        return answer

    async def _run_each(self, tickets: Sequence[Ticket[Any]]) -> None:
        for ticket in tickets:
            try:
                ticket.answer = await ticket.work()
            except (RedisError, OSError, TimeoutError) as error:
                ticket.error = plainly(error, self._place)
            except Exception as error:
                ticket.error = error

    async def _script(self, wire: Wire, name: str, *words: Any) -> Any:
        """Run a script; answers without how far the store has come, which is noted."""
        answer = await wire.run(script(name), self._place.tag, lambda: (*self._store.given(), *words))
        return self._store.heard(answer, wire)[1:]

    async def _look(self, name: str, *words: Any) -> Any:
        return await self._call(lambda: self._script(self._looks, name, *words))

    async def _read(self, *words: Any) -> Any:
        """A plain read, behind the door."""

        async def read() -> Any:
            _, answer = await asyncio.gather(self._script(self._looks, "door"), self._looks.call(*words))
            return answer

        return await self._call(read)

    def _key(self, name: str) -> str:
        return f"{self._place.tag}:{name}"

    async def _in_calls(self, tickets: Sequence[Ticket[Any]], name: str, parts: Iterator[list[Any]]) -> list[Any]:
        """Do what several callers asked for in as few calls as is bearable, sent together."""
        try:
            answers = await asyncio.gather(*(self._script(self._acts, name, *words) for words in parts))
        except (RedisError, OSError, TimeoutError, StoreError) as error:
            told = plainly(error, self._place)
            for ticket in tickets:
                ticket.error = told
            return []
        return [one for answer in answers for one in answer]

    # Writing.

    async def _run_inserts(self, tickets: Sequence[Ticket[Any]]) -> None:
        orders: list[tuple[int, bytes]] = []
        for ticket in tickets:
            jobs, parent = ticket.work
            lease = (False, 0) if parent is None else (parent.job, parent.epoch)
            orders.append((len(jobs), rows.pack((*lease, [rows.job_row(job) for job in jobs]))))
        for ticket, answer in zip(tickets, await self._in_calls(tickets, "insert", _parts(orders)), strict=False):
            jobs, parent = ticket.work
            match answer[0]:
                case 0:
                    ticket.error = LeaseLost(
                        f"job {parent.job}: its lease (epoch {parent.epoch}) is over; nothing was inserted"
                    )
                case 1:
                    ticket.error = KeyConflict(key_conflict(jobs[answer[1] - 1], answer[2].decode()))
                case _:
                    ticket.answer = [
                        Inserted(id.decode(), new == 1) for id, new in zip(answer[1::2], answer[2::2], strict=True)
                    ]

    async def _run_commits(self, tickets: Sequence[Ticket[Any]]) -> None:
        changes = [change for ticket in tickets for change in ticket.work]
        parts = _parts((rows.weight(change), rows.change_row(change)) for change in changes)
        found = await self._in_calls(tickets, "commit", parts)
        if len(found) == len(changes):
            answers = (rows.answer_of(row, change.job.id) for row, change in zip(found, changes, strict=True))
            for ticket in tickets:
                ticket.answer = list(islice(answers, len(ticket.work)))

    async def _run_records(self, tickets: Sequence[Ticket[Any]]) -> None:
        steps = [step for ticket in tickets for step in ticket.work]
        words = (
            (step.job, step.epoch, step.path, rows.STEP_LETTERS[step.state], rows.step_row(step)) for step in steps
        )
        found = await self._in_calls(tickets, "record", _parts((1, *one) for one in words))
        if len(found) == len(steps):
            answers = (_recorded(step, row) for step, row in zip(steps, found, strict=True))
            for ticket in tickets:
                ticket.answer = list(islice(answers, len(ticket.work)))

    async def _run_turns(self, tickets: Sequence[Ticket[Any]]) -> None:
        """The commit and the claim are sent one behind the other, and answered in one go."""
        for ticket in tickets:
            changes, worker, queues, limit = ticket.work
            commits = Ticket[Any](changes, None)
            claiming = self._claim(worker, queues, limit) if limit else _nothing()
            _, claimed = await asyncio.gather(self._run_commits([commits]), claiming, return_exceptions=True)
            ticket.error = commits.error
            ticket.answer = (commits.answer, [] if isinstance(claimed, BaseException) else claimed)

    async def insert(self, jobs: Sequence[Job], parent: Lease | None = None) -> list[Inserted]:
        """See Engine.insert."""
        check_jobs(jobs)
        answer: list[Inserted] = await self._do("insert", (jobs, parent))
        return answer

    async def claim(self, worker: str, queues: Sequence[str], limit: int) -> list[Job]:
        """See Engine.claim."""
        check_worker(worker)
        asked = rows.storable(list(dict.fromkeys(queues)))
        answer: list[Job] = await self._do("claim", lambda: self._claim(worker, asked, max(0, limit)))
        return answer

    async def _claim(self, worker: str, queues: list[str], limit: int) -> list[Job]:
        """One call, or several where more is due or wanted than one call does."""
        jobs: list[Job] = []
        asked, may = tuple(queues), [PROMOTE_LIMIT] * len(queues)
        for _ in range(ROUNDS):
            words = [word for pair in zip(queues, may, strict=True) for word in pair]
            answer = await self._script(self._acts, "claim", worker, limit - len(jobs), PAGE, *words)
            now, due, place, promoted, *found = answer
            self._heard_clock(now)
            jobs += map(rows.job_of, found)
            if not place:
                if not jobs:
                    self._due = (asked, rows.score(due), time.monotonic())
                break
            queues, may = queues[place - 1 :], may[place - 1 :]
            may[0] -= promoted
        return jobs

    async def commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        """See Engine.commit."""
        check_changes(changes)
        if not changes:
            return []
        answer: list[Applied | Conflict] = await self._do("commit", changes)
        return answer

    async def turn(
        self, changes: Sequence[Change], worker: str, queues: Sequence[str], limit: int
    ) -> tuple[list[Applied | Conflict], list[Job]]:
        """See Engine.turn: one way there and back."""
        check_changes(changes)
        check_worker(worker)
        asked = rows.storable(list(dict.fromkeys(queues)))
        answer: tuple[list[Applied | Conflict], list[Job]]
        answer = await self._do("turn", (changes, worker, asked, max(0, limit)))
        return answer

    async def record(self, steps: Sequence[Step]) -> list[Recorded | Conflict]:
        """See Engine.record."""
        check_steps(steps)
        if not steps:
            return []
        answer: list[Recorded | Conflict] = await self._do("record", steps)
        return answer

    async def put_record(self, name: str, value: str | None, expected: int | None = None) -> Record | Conflict:
        """See Engine.put_record."""
        check_record(name, value)
        words = (name, int(value is not None), value or "", "" if expected is None else expected)
        done, version, *at = await self._look("put_record", *words)
        return Record(name, value or "", version, at[0]) if done else Conflict(name, OUTRUN, version=version)

    async def prune(self, limit: int = PRUNE_LIMIT) -> int:
        """See Engine.prune. Tidies, too: keys whose time is over, the traces of dead workers."""
        most, gone = at_most(limit, PAGE_LIMIT), 0
        for _ in range(ROUNDS):
            pruned, done = await self._look("prune", most - gone, PAGE)
            gone += pruned
            if not done or gone >= most:
                break
        now = time.monotonic()
        if now - self._tidied_at > TIDY_SECONDS:
            self._tidied_at = now
            await self._forget_workers()
        return gone

    async def _forget_workers(self) -> None:
        now, present = await self._presences()
        old = [one for one in present if one.gone or now - one.beat_at > SILENT_LEASES * one.lease_ms]
        if old:
            await self._look("forget", *(word for one in old for word in (one.worker, one.beat_at)))

    # Reading.

    async def now(self) -> Time:
        """See Engine.now. Between two answers of the server our own clock goes on: never ahead of the server's."""
        self._check_open()
        at, since, heard = self._server
        if time.monotonic() - heard > CLOCK_SECONDS:
            [now] = await self._look("door")
            self._heard_clock(now)
            at, since, _ = self._server
        return at + int((time.monotonic() - since) * 1_000)

    def _heard_clock(self, server: Time) -> None:
        # What the server said is older than this moment, so what is counted from here is behind it, never ahead. Of
        # several answers the one that took the shortest way counts, unless the server's clock was set.
        here = time.monotonic()
        at, since, _ = self._server
        followed = at + int((here - since) * 1_000)
        near = followed - CLOCK_SET_MS < server <= followed
        self._server = (at, since, here) if near else (server, here, here)

    async def health(self) -> Health:
        """How the server is, for who looks after it."""
        return await self._call(lambda: health_of(self._looks))

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See Engine.get."""
        asked = rows.storable(list(dict.fromkeys(ids)))
        found: dict[str, Job] = {}
        for start in range(0, len(asked), PAGE):
            for row in await self._look("get", *asked[start : start + PAGE]):
                if row is not None:
                    job = rows.job_of(row)
                    found[job.id] = job
        return [found.get(id) for id in ids]

    async def find(self, where: Where, after: str = "", limit: int = PAGE_LIMIT) -> list[Job]:
        """See Engine.find: along the states, the children, or what expires, a page of ids at a time."""
        most = at_most(limit, PAGE_LIMIT)
        texts = [text for text in (after, where.queue, where.type, where.parent) if text is not None]
        if not most or len(rows.storable(texts)) < len(texts):
            return []
        if where.expires_before is not None:
            try:
                return await self._find_expired(where, after, most)
            except StoreFull:
                return await self._list_expired(where, after, most)
        letters = "".join(rows.LETTERS[state] for state in dict.fromkeys(where.states))
        indexes = [f"i:{letter}" for letter in letters or rows.STATES]
        if where.parent is not None:
            indexes = [f"c:{where.parent}"]
        fixed = (letters, *_maybe(where.queue), *_maybe(where.type), *indexes)
        jobs: list[Job] = []
        start: str | bytes | None = after
        while start is not None and len(jobs) < most:
            start, *found = await self._look(
                "find", start, int(where.newest_first), most - len(jobs), FIND_PAGE, *fixed
            )
            jobs += map(rows.job_of, found)
        return jobs

    async def _find_expired(self, where: Where, after: str, most: int) -> list[Job]:
        """Along what has expired, a page of ids at a time; what is new there is first put in order, each job once."""
        letters = "".join(rows.LETTERS[state] for state in dict.fromkeys(where.states))
        fixed = (letters, *_maybe(where.queue), *_maybe(where.type), *_maybe(where.parent))
        jobs: list[Job] = []
        start: str | bytes | None = after
        while start is not None and len(jobs) < most:
            start, *found = await self._look(
                "expired", str(where.expires_before), start, int(where.newest_first), most - len(jobs), PAGE, *fixed
            )
            # The server compares times as floats, which are the same for some that are far away.
            jobs += (job for job in map(rows.job_of, found) if matches(job, where))
        return jobs

    async def _list_expired(self, where: Where, after: str, most: int) -> list[Job]:
        """The same on a full server, which can put nothing in order: it still can be read, so all of it is listed."""
        over = await self._read("ZRANGEBYSCORE", self._key("x"), "-inf", str(where.expires_before))
        ids = {id.decode() for id in (*over, *await self._read("ZRANGEBYLEX", self._key("xi"), "-", "+"))}
        newest = where.newest_first
        behind = sorted((id for id in ids if not after or (id < after if newest else id > after)), reverse=newest)
        jobs: list[Job] = []
        for start in range(0, len(behind), PAGE):
            found = await self.get(behind[start : start + PAGE])
            jobs += (job for job in found if job is not None and matches(job, where))
            if len(jobs) >= most:
                break
        return jobs[:most]

    async def count(self) -> Mapping[tuple[str, State], int]:
        """See Engine.count."""
        found = [word.decode() for word in await self._read("HGETALL", self._key("c"))]
        return {(name[1:], rows.STATES[name[0]]): int(n) for name, n in zip(found[::2], found[1::2], strict=True)}

    async def steps(self, job: str) -> list[Step]:
        """See Engine.steps."""
        if not rows.storable([job]):
            return []
        return rows.steps_of(job, await self._read("HGETALL", self._key(f"s:{job}")))

    async def history(self, job: str, after: int = 0, limit: int = PAGE_LIMIT) -> list[Entry]:
        """See Engine.history."""
        most = at_most(limit, PAGE_LIMIT)
        if not most or not rows.storable([job]):
            return []
        return rows.entries_of(job, after, most, await self._look("history", job, after, most))

    async def missing(self, parent: str, group: str) -> int:
        """See Engine.missing."""
        return int(await self._read("HGET", self._key(f"g:{parent}"), f"g{group}") or 0)

    async def records(self, prefix: str) -> list[Record]:
        """See Engine.records."""
        found: list[Record] = []
        if not prefix.startswith(WORKER):
            after = ""
            while page := await self._look("records", prefix, after, PAGE):
                for name, text in zip(page[::2], page[1::2], strict=True):
                    version, at, value = rows.unpack(text)
                    found.append(Record(name.decode(), value, version, at))
                after = found[-1].name
        if prefix.startswith(WORKER) or WORKER.startswith(prefix):
            _, present = await self._presences()
            known = (Record(WORKER + one.worker, msgspec.json.encode(one).decode(), 0, one.beat_at) for one in present)
            found += [record for record in known if record.name.startswith(prefix)]
        return sorted(found, key=lambda record: record.name)

    async def _presences(self) -> tuple[Time, list[Presence]]:
        return await self._call(self._look_for_workers)

    async def _look_for_workers(self) -> tuple[Time, list[Presence]]:
        """The workers, and whether the connections of those that missed a beat are there."""
        wire = self._looks
        now, generation, *found = await self._script(wire, "workers")
        remade_ms = (asyncio.get_running_loop().time() - wire.since) * 1_000 if wire.remade else None
        seen = [Seen(*pair) for pair in zip(found[::2], found[1::2], strict=True)]
        suspects = {one.client for one in seen if one.is_suspect(now, int(generation), remade_ms)}
        if suspects:
            listed = await wire.call("CLIENT", "LIST", "ID", *suspects)
            suspects -= {int(line.split(b" ", 1)[0].removeprefix(b"id=")) for line in listed.splitlines() if line}
        return now, [
            one.presence(gone=one.client in suspects, away=one.is_excused(now, int(generation), remade_ms))
            for one in seen
        ]

    # Beating and waking.

    async def beat(self, presence: Presence) -> Beat:
        """See Engine.beat. On a connection of its own, which is the sign of life."""
        check_worker(presence.worker)

        async def beat() -> Beat:
            wire = self._beats
            await wire.connected()
            return beat_of(presence, [0, *await self._script(wire, "beat", *beat_words(presence, wire))])

        answer: Beat = await self._do("beat", beat)
        self._heard_clock(answer.now)
        return answer

    async def wait(self, topics: Collection[str], timeout: float, after: int = 0) -> int:
        """See Engine.wait."""
        self._check_open()
        topics = rows.storable(list(topics))
        if not self._news.hears.issuperset(topics):
            try:
                await self._call(lambda: self._news.listen(topics))
                return after  # what came before we listened can't be known: look once more
            except StoreError:
                timeout = min(timeout, DEAF_POLL_SECONDS)
        queues = queues_of(topics)
        if queues and timeout > 0:
            now, due = await self._next_due(queues)
            timeout = until_due(due, now, timeout)
        return await self._bell.wait(topics, timeout, after)

    async def _next_due(self, queues: list[str]) -> tuple[Time, Time | None]:
        asked, due, at = self._due
        if asked == tuple(queues) and time.monotonic() - at < DUE_SECONDS:
            return await self.now(), due
        now, found = await self._look("due", *queues)
        return now, rows.score(found)


async def _nothing() -> list[Job]:
    return []


@asynccontextmanager
async def _unopened(place: Place) -> AsyncIterator[Wire]:
    """A connection that greets no store, and so makes none."""

    async def say_nothing(wire: Wire) -> None:
        return

    wire = Wire(place, Way(place), say_nothing)
    try:
        yield wire
    except (RedisError, OSError, TimeoutError) as error:
        raise plainly(error, place) from error
    finally:
        await wire.close()


def _recorded(step: Step, row: Any) -> Recorded | Conflict:
    if row == 1:
        return Recorded(step, True)
    if row[0] == 0:
        return rows.conflict_of(row, step.job)
    return Recorded(rows.step_of(step.job, step.path, row[1]), False)


def _maybe(text: str | None) -> tuple[int, str]:
    return (0, "") if text is None else (1, text)


def _parts(weighed: Any) -> Iterator[list[Any]]:
    """Words for several calls: (weight, word …) in groups that one call can bear."""
    words: list[Any] = []
    weight = size = 0
    for one, *more in weighed:
        length = sum(len(word) for word in more if isinstance(word, bytes | str))
        if words and (weight + one > CALL_WEIGHT or size + length > CALL_SIZE):
            yield words
            words, weight, size = [], 0, 0
        words += more
        weight += one
        size += length
    if words:
        yield words
