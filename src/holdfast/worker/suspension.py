"""Waiting inside a job: what is parked, when the job gives up its slot, and how a wait is answered.

A wait is a future inside the running job. Once nothing else runs, one commit writes all parked waits, any of which
wakes the job; its code then runs from the top, recorded waits answer at once and others park again. Must not know apps.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from holdfast.core.codec import canonical, parse
from holdfast.core.durations import in_words
from holdfast.core.errors import HoldfastError, Invalid
from holdfast.core.lifecycle import decide
from holdfast.core.limits import WAITS
from holdfast.core.model import (
    LEASE_LOST,
    Applied,
    Conflict,
    Event,
    Signal,
    State,
    Step,
    StepState,
    Time,
    Wait,
    WaitKind,
)
from holdfast.engines.topics import job_topic
from holdfast.jobs.consequences import wake_now
from holdfast.jobs.questions import WITHDRAWN
from holdfast.jobs.waiters import awaited, break_circle, waiters_of
from holdfast.safe_text import logger
from holdfast.worker.attempt import DOUBTED, LOST, STORE_RETRY_SECONDS, SUSPENDED, Attempt, record_info
from holdfast.worker.context import ATTEMPT, PATH
from holdfast.worker.outcomes import vanished_note
from holdfast.worker.own_loop import at_home, is_away

T = TypeVar("T")

log = logger("holdfast.worker")

CHILD_TASKS_SECONDS = 1.0
"""How long only tasks that the job started may be parked, while the job itself is not, before it suspends."""

SHORT_SECONDS = 1.0
"""A wait that is over so soon is waited for in the slot."""

QUIET_TURNS = 10
"""For how many turns of the loop nothing may begin before a job suspends: tasks that were started just now may begin a
step or set a timer first, and what a timer has just set off may pass through several tasks.
"""

INSTEAD = "give the wait within= or timeout=, or sleep with holdfast.sleep"
"""What to write instead of a timer that doesn't outlive a suspend."""

LISTEN_SECONDS = 5.0
"""How often a job that is parked and still has steps running looks for signals by itself."""


class PendingWait(Generic[T]):
    """One wait of a job. `look` answers with the value in a list, or None while there is none."""

    def __init__(
        self, path: str, wait: Wait, look: Callable[[], Awaitable[list[T] | None]], info: dict[str, Any] | None = None
    ) -> None:
        self.path = path
        self.wait = wait
        """What wakes the job; a look at something may change it, and not the end."""
        self.end = wait.until
        self.look = look
        self.info = info or {}
        self.future: asyncio.Future[None] | None = None
        self.root = False
        """Whether the job itself waits, and not a task or a thread that it started."""
        self.since = 0.0
        """When it was first parked, by the loop's clock."""
        self.dropped = False
        """Whether the job itself gave it up before: it takes nothing, and nobody wakes the job for it."""


class Suspension:
    """The parked waits of one attempt. On the worker's loop."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._parked: list[PendingWait[Any]] = []
        self._dropped: list[str] = []
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self.patience_seconds = CHILD_TASKS_SECONDS
        self.refused: list[str] = []
        """Signals that did not fit what the job waited for, for the history."""
        self.refusals: dict[str, dict[str, Any]] = {}
        """The last of them under each name: which, from whom, and why it did not fit. The wait's record tells that."""

    @classmethod
    def of(cls, attempt: Attempt) -> "Suspension":
        """The parking of an attempt, made when it is first asked for."""
        if attempt.parking is None:
            attempt.parking = cls(attempt)
        assert isinstance(attempt.parking, cls)
        return attempt.parking

    async def wait(self, parked: PendingWait[T]) -> T:
        """Wait until it is answered."""
        attempt = self._attempt
        if is_away(attempt):
            return await at_home(attempt, self.wait(parked))
        if PATH.get():
            step = PATH.get().rpartition("/")[2]
            raise Invalid(f"step {step}: a wait inside a step would hold its slot; wait in the job, between its steps")
        if len(self._parked) >= WAITS:
            raise Invalid(f"a job waits for at most {WAITS:,} things at once; wait for some of them after others")
        parked.root = asyncio.current_task() in (attempt.root, attempt.own_call)
        parked.since = attempt.loop.time()
        while True:
            self._check()
            with attempt.at_work():
                answer = await parked.look()
            if answer is not None:
                return answer[0]
            self._check()
            try:
                await self._park(parked)
            except asyncio.CancelledError:
                if attempt.stop is None and parked.path:
                    self._dropped.append(parked.path)
                    if self._given_up():
                        await asyncio.shield(attempt.loop.create_task(self._withdraw(), context=_outside()))
                raise

    async def _park(self, parked: PendingWait[Any]) -> None:
        """Stand still until there may be something to see."""
        attempt = self._attempt
        parked.future = attempt.loop.create_future()
        timer = None
        if parked.wait.until is not None:
            seconds = max(0.0, (parked.wait.until - attempt.now()) / 1_000)
            timer = attempt.loop.call_later(seconds, _wake, parked.future, context=_outside())
        self._parked.append(parked)
        attempt.stirred = self.stir
        self.stir()
        try:
            await parked.future
        finally:
            self._parked.remove(parked)
            attempt.stirred = self.stir if self._parked else None
            if timer is not None:
                timer.cancel()

    def _given_up(self) -> list[Step]:
        """The records that still ask for what the job gave up."""
        known = [record for path in self._dropped if (record := self._attempt.waits.get(path)) is not None]
        return [
            one
            for one in known
            if one.state is StepState.STARTED and record_info(one).keys() & {"name", WITHDRAWN} == {"name"}
        ]

    async def _withdraw(self) -> None:
        """Nobody is to answer any more what the job gave up, though it runs on.

        The record says so in a way that can be taken back: only a suspend settles what the job's code has decided.
        """
        attempt = self._attempt
        with attempt.at_work():
            if given_up := self._given_up():
                await attempt.begin([self._record(one.path, {**record_info(one), WITHDRAWN: True}) for one in given_up])

    def _check(self) -> None:
        """Raise unless the job may still wait. To a task that the job left behind its end is a cancel."""
        self._attempt.check()

    def close(self) -> None:
        """The attempt is over: tasks that the job left behind wait no longer."""
        for parked in self._parked:
            if parked.future is not None:
                parked.future.cancel()

    def stir(self) -> None:
        """Something began or ended: whether to suspend is thought over again."""
        if self._parked and self._watching is None:
            self._watching = self._attempt.loop.create_task(self._watch(), context=_outside())
            self._watching.add_done_callback(self._watched)
        self._changed.set()

    def _watched(self, task: "asyncio.Task[None]") -> None:
        self._watching = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            for parked in self._parked:
                if parked.future is not None and not parked.future.done():
                    parked.future.set_exception(error)
        elif self._parked and self._attempt.stop is None:
            self.stir()

    async def _watch(self) -> None:
        """Suspend the job as soon as it may: it waits for nothing but what is parked."""
        mark = 0
        while self._parked and self._attempt.stop is None:
            self._changed.clear()
            hold = LISTEN_SECONDS if self._attempt.is_busy() else self._hold()
            if hold is not None:
                hold = min(hold, await self._tell())
                mark = await self._listen(mark, hold)
                continue
            if not any(parked.root for parked in self._parked):
                if await self._is_changed(self.patience_seconds):
                    continue
            else:
                for _ in range(QUIET_TURNS):
                    await asyncio.sleep(0)
            if self._may_suspend():
                await self._suspend()

    def _may_suspend(self) -> bool:
        """Whether nothing has begun since the watcher last looked."""
        quiet = self._parked and not self._changed.is_set() and not self._attempt.is_busy()
        return bool(quiet) and self._hold() is None

    async def _tell(self) -> float:
        """Write what the waits ask that stay in the slot, and when they end; the seconds until there is more to write.

        Others see and answer what is written, and after a crash the time counts on. Short waits are not worth it.
        """
        attempt, now = self._attempt, self._attempt.loop.time()
        soon = attempt.now() + round(SHORT_SECONDS * 1_000)
        until_kept = 0.0 if attempt.kept_slot else SHORT_SECONDS
        told, wait = [], LISTEN_SECONDS
        for parked in self._parked:
            left = parked.since + until_kept - now
            if (parked.end is not None and parked.end > soon) or (parked.info and left <= 0):
                told.append(parked)
            elif parked.info:
                wait = min(wait, max(0.01, left))
        if begun := self._asked(told):
            await attempt.begin(begun)
            await self._withdraw()  # what was given up meanwhile
        return wait

    def _hold(self) -> float | None:
        """For how many seconds the job stays in its slot, because something is over so soon; None when it may go."""
        now = self._attempt.now()
        ends = [(parked.wait.until - now) / 1_000 for parked in self._parked if parked.wait.until is not None]
        soon = [seconds for seconds in ends if seconds <= SHORT_SECONDS]
        if timers := self._timers():
            soon.append(min(*timers, LISTEN_SECONDS))
        return max(0.01, min(soon)) if soon else None

    def _timers(self) -> list[float]:
        """Seconds until each timer that the job's own code has set strikes, as long as they keep it in its slot.

        What a task sets again and again while the job itself waits is no reason to hold the slot for ever. Nor is a job
        that asks for other jobs again and again: those may need this very slot.
        """
        attempt = self._attempt
        waits = frozenset((parked.path, parked.wait.kind, parked.wait.name) for parked in self._parked)
        repeats = any(parked.root or _is_for_jobs(parked.wait) for parked in self._parked)
        left = attempt.timers.holding(attempt.loop.time(), (len(attempt.records), waits), repeats=repeats)
        if max(left, default=0.0) > SHORT_SECONDS and not attempt.kept_slot:
            longest = in_words(round(max(left) * 1_000))
            attempt.kept_slot = f"its code set a timer on the event loop, with {longest} left; {INSTEAD}"
            attempt.log(f"keeps its slot while it waits: {attempt.kept_slot}")
            log.warning("job %s: keeps its slot while it waits: %s", attempt.job.id, attempt.kept_slot)
        return left

    async def _is_changed(self, seconds: float) -> bool:
        """Whether something began or ended within this time."""
        try:
            async with asyncio.timeout(seconds):
                return await self._changed.wait()
        except TimeoutError:
            return False

    async def _listen(self, mark: int, seconds: float) -> int:
        """While the job stays in its slot: hear of signals and children."""
        attempt = self._attempt
        if all(parked.wait.kind is WaitKind.TIME for parked in self._parked):
            await self._is_changed(seconds)
            return mark
        topics = [job_topic(attempt.job.id)]
        hearing = attempt.loop.create_task(attempt.engine.wait(topics, min(seconds, LISTEN_SECONDS), mark))
        changing = attempt.loop.create_task(self._changed.wait())
        try:
            await asyncio.wait([hearing, changing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changing.cancel()
            hearing.cancel()
        if not hearing.done() or hearing.cancelled():
            return mark
        if hearing.exception() is not None:  # the store is away: asked at once, it would be asked without a pause
            await self._is_changed(STORE_RETRY_SECONDS[-1])
            return mark
        mark = hearing.result()
        await self._refresh()
        return mark

    async def _refresh(self) -> None:
        """Look what has come for this job meanwhile, and let every wait look again."""
        await self.read_inbox()
        for parked in self._parked:
            _wake(parked.future)

    async def read_inbox(self) -> None:
        """Read the signals that came since the claim."""
        attempt = self._attempt
        (job,) = await attempt.persist(lambda: attempt.engine.get([attempt.job.id]))
        if job is None or job.state is not State.ACTIVE or job.epoch != attempt.job.epoch:
            attempt.halt(LOST)
        else:
            attempt.job = replace(attempt.job, version=job.version, inbox=job.inbox)

    async def _suspend(self) -> None:
        """Commit all parked waits, then end the attempt. What came in between makes the job go on."""
        attempt, parked = self._attempt, list(self._parked)
        if attempt.has_unheard():  # a person is asked now, and not when the wait is over
            attempt.halt(DOUBTED)
            return
        waits = tuple(dict.fromkeys(one.wait for one in parked if not one.dropped))
        if not waits:
            await self._changed.wait()
            return
        if ready := [one for one in parked if attempt.inbox(one.wait.name) and not one.dropped]:
            for one in ready:  # what it waits for came in with something else that was read
                _wake(one.future)
            return
        note: dict[str, Any] = {"waits": [words(wait, attempt.now()) for wait in waits]}
        if self.refused:
            note["refused"] = self.refused
        if attempt.kept_slot:
            note["kept_slot"] = attempt.kept_slot
        if attempt.timers.left(attempt.loop.time()):
            note["forgets"] = f"timers that its code sets again and again; they begin anew with the code; {INSTEAD}"
            log.warning("job %s: suspends and forgets %s", attempt.job.id, note["forgets"])
        elif not attempt.spec.is_async and not any(one.root for one in parked):
            note["forgets"] = f"what its own thread does beside the wait; a timeout there begins anew; {INSTEAD}"
            log.warning("job %s: suspends and forgets %s", attempt.job.id, note["forgets"])
        if attempt.has_made():  # what was asked for anew may be what is recorded under another name
            note |= vanished_note(attempt)
        attempt.closing = True
        try:
            now = await attempt.persist(attempt.engine.now)
            if attempt.is_busy() or self._parked != parked or self._hold() is not None:
                return
            ends = [wait.until for wait in waits if wait.until is not None]
            at_rest = all(wait.kind is WaitKind.TIME for wait in waits)
            change = decide(
                attempt.job,
                Event.REST if at_rest else Event.SUSPEND,
                now,
                by=attempt.job.worker or "",
                waits=waits,
                run_at=min(ends) if at_rest else None,
                takes=attempt.taken(),
                steps=(*self._begun(parked), *attempt.log_record(), *attempt.progress_record(now)),
                drops=(*attempt.drops, *self._undelivered()),
                note=note,
            )
            (answer,) = await attempt.persist(lambda: attempt.engine.commit([change]))
            is_lost = isinstance(answer, Conflict) and answer.reason == LEASE_LOST
            if isinstance(answer, Applied) or (is_lost and await attempt.is_done(change)):
                grown = any(one not in parked for one in self._parked)
                attempt.halt(SUSPENDED)
                if grown:  # a wait came while the others were written: run again, and wait for all of them
                    by = attempt.job.worker or ""
                    await wake_now(attempt.engine, attempt.job.id, by=by, why="it waits for more than was written")
            elif is_lost:
                attempt.halt(LOST)
        finally:
            attempt.closing = False
            if attempt.told is not None and attempt.stop is None:
                attempt.halt(attempt.told)
        if attempt.stop is None:
            await self._refresh()
        elif attempt.stop == SUSPENDED:
            await self._break_circles(waits)

    async def _break_circles(self, waits: tuple[Wait, ...]) -> None:
        """We wait, from now on: should others wait for us for whom we wait, one of us is woken, to be refused."""
        job, engine = self._attempt.job, self._attempt.engine
        concerned = [job.id] if any(awaited(wait) for wait in waits) else []
        try:
            for id in (*concerned, *waiters_of(job)):
                await break_circle(engine, id, by=job.worker or "")
        except HoldfastError as error:
            log.debug("job %s: whether jobs wait for each other is looked at later: %s", job.id, error)

    def _begun(self, parked: list[PendingWait[Any]]) -> list[Step]:
        """The records of waits: what they ask, and until when they wait; and those that the job has given up."""
        asked = {one.path for one in parked if not one.dropped}
        given_up = [path for path in dict.fromkeys(self._dropped) if path not in asked]
        dropped = [self._attempt.wait_record(path, StepState.DONE, {"dropped": True}) for path in given_up]
        return self._asked(parked) + dropped

    def _undelivered(self) -> tuple[str, ...]:
        """Waits that the job gave up and whose records hold a signal all the same: they make room for `_begun`."""
        records = [self._attempt.waits.get(path) for path in dict.fromkeys(self._dropped)]
        return tuple(one.path for one in records if one is not None and "signal" in record_info(one))

    def give_back(self, path: str, signal: Signal | None) -> None:
        """A wait is cancelled before its code has the answer. The signal, if it took one, is the next wait's."""
        if self._attempt.stop is None:
            self._dropped.append(path)
        if signal is not None:
            self._attempt.give_back(signal)
            for parked in self._parked:
                if parked.wait.name == signal.name:
                    _wake(parked.future)

    def _asked(self, parked: list[PendingWait[Any]]) -> list[Step]:
        """The records of what these waits ask, as far as they are not written yet."""
        known = {path: record_info(record) for path, record in self._attempt.waits.items()}
        asked = []
        for one in [one for one in parked if one.path and not one.dropped]:
            refused = self.refusals.get(one.wait.name) or known.get(one.path, {}).get("refused")
            asked.append((one.path, {**one.info, "until": one.end, **({"refused": refused} if refused else {})}))
        return [self._record(path, info) for path, info in asked if known.get(path) != info]

    def _record(self, path: str, info: dict[str, Any]) -> Step:
        """The record of what a wait asks. It was asked when it was first asked."""
        record, before = self._attempt.wait_record(path, StepState.STARTED, info), self._attempt.waits.get(path)
        return record if before is None else replace(record, started_at=before.started_at)


# Kinds of waits.


def sleep_until(attempt: Attempt, path: str, milliseconds: int) -> PendingWait[None]:
    """A wait for a time. Its end is fixed when it is first asked for."""
    until = until_of(attempt, path, milliseconds)

    async def look() -> list[None] | None:
        return [None] if attempt.now() >= (until or 0) else None

    return PendingWait(path, Wait(WaitKind.TIME, until=until), look)


def signal_wait(
    attempt: Attempt,
    path: str,
    name: str,
    read: Callable[[str], T],
    within_ms: int | None,
    info: dict[str, Any],
) -> PendingWait[T]:
    """A wait for a signal, which is recorded with its value; or for the end of its time, recorded too."""
    until = until_of(attempt, path, within_ms)

    async def look() -> list[T] | None:
        record = attempt.waits.get(path)
        if record is not None and record.state is StepState.DONE:
            if attempt.is_given_up(record_info(record)):
                parked.dropped = True
                return None
            return [_answer(record, name, within_ms, read)]
        late = until is not None and attempt.now() >= until
        signal = None
        try:
            if late:
                await Suspension.of(attempt).read_inbox()
            signal = _first_fitting(attempt, name, read)
            if signal is None and not late:
                return None
            # To its end, even if the wait is cancelled meanwhile: the job doesn't suspend before that.
            turn = attempt.turns.get(signal.version, 1) if signal is not None else 1
            settled = await asyncio.shield(attempt.loop.create_task(_settle(attempt, path, signal, turn)))
        except asyncio.CancelledError:
            Suspension.of(attempt).give_back(path, signal)
            raise
        return [_answer(settled, name, within_ms, read)]

    parked = PendingWait(path, Wait(WaitKind.SIGNAL, name, until), look, info)
    return parked


def _first_fitting(attempt: Attempt, name: str, read: Callable[[str], Any]) -> Signal | None:
    """The oldest signal of this name that fits; it is this wait's from now on. Those that don't are refused."""
    for signal in attempt.inbox(name):
        attempt.used.add(signal.version)
        try:
            read(signal.value)
        except Invalid as error:
            attempt.spent.add(signal.version)
            parking, by = Suspension.of(attempt), signal.by or "nobody"
            parking.refused.append(f"{name} from {by}: {error}")
            there = {one.version for one in attempt.job.inbox}
            before = [one for one in parking.refusals.get(name, {}).get("signals", ()) if one in there]
            parking.refusals[name] = {"signals": [*before, signal.version], "by": by, "why": str(error)}
            attempt.log(f"signal {name} was refused: {error}")
        else:
            return signal
    return None


def until_of(attempt: Attempt, path: str, milliseconds: int | None) -> Time | None:
    """When a wait is over: as it was written when the job suspended over it, else counted from now."""
    record = attempt.waits.get(path)
    if record is not None and record.state is StepState.STARTED:
        until: Time | None = record_info(record).get("until")
        return until
    return None if milliseconds is None else attempt.now() + milliseconds


async def _settle(attempt: Attempt, path: str, signal: Signal | None, turn: int) -> Step:
    """Record that a wait has taken a signal, which was taken in vain `turn - 1` times before; or that it was late."""
    info: dict[str, Any] = {"late": True}
    if signal is not None:
        info = {"signal": signal.version, "value": parse(signal.value)} | ({"turn": turn} if turn > 1 else {})
    try:
        with attempt.at_work():
            return await attempt.keep_wait(attempt.wait_record(path, StepState.DONE, info))
    except BaseException:
        if signal is not None and not attempt.is_given_up(info):
            attempt.used.discard(signal.version)
        raise


def _answer(record: Step, name: str, within_ms: int | None, read: Callable[[str], T]) -> T:
    info = record_info(record)
    if info.get("late"):
        raise TimeoutError(f"{name} did not come within {in_words(within_ms or 0)}")
    return read(canonical(info["value"]))


def _is_for_jobs(wait: Wait) -> bool:
    return wait.kind is WaitKind.CHILDREN or awaited(wait) is not None


def words(wait: Wait, now: Time) -> str:
    """What a job waits for, in words for the history."""
    other = awaited(wait)
    what = (
        f"job {other}"
        if other is not None
        else {
            WaitKind.TIME: "time",
            WaitKind.SIGNAL: f"signal {wait.name}",
            WaitKind.CHILDREN: f"children {wait.name}",
        }.get(wait.kind, str(wait.kind))
    )
    if wait.until is None:
        return what
    seconds = max(0, round((wait.until - now) / 1_000))  # "2 d", and not "1 d 23 h", because a moment has passed
    return f"{what}, for {in_words(seconds * 1_000)} at most"


def _wake(future: "asyncio.Future[None] | None") -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _outside() -> contextvars.Context:
    """A context that belongs to no job: the watcher's own timers are not the job's."""
    context = contextvars.copy_context()
    context.run(ATTEMPT.set, None)
    return context
