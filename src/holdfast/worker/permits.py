"""The permits of one attempt's steps: asked for before each try, given back with the step's record.

A step without room waits. It keeps its slot for a moment; then its job gives up the slot, unless another step of the
job runs (`suspension`). Must not know how asks reach the store (`admissions`).
"""

import asyncio
import socket
from collections.abc import Sequence

from holdfast.core.budgets import budget_uses, is_budget, parts_of, settles_of, waiting_key
from holdfast.core.declared_limits import Limit, fixed_uses, uses_of
from holdfast.core.errors import HoldfastError, Invalid
from holdfast.core.model import Ask, Conflict, Recorded, Step, StepState, Use, Wait, WaitKind
from holdfast.core.shared_limits import LIMIT, UNIT, limit_of, settings_of
from holdfast.core.spending import added
from holdfast.jobs.budgets import open_budget
from holdfast.safe_text import logger
from holdfast.worker.admissions import Admissions, Waiting
from holdfast.worker.attempt import Attempt
from holdfast.worker.booking import book, is_unbooked
from holdfast.worker.call import Call
from holdfast.worker.context import PATH
from holdfast.worker.held_job import LOST
from holdfast.worker.pending_wait import PendingWait
from holdfast.worker.records import paths_above
from holdfast.worker.registry import Registry
from holdfast.worker.suspension import Suspension
from holdfast.worker.tries import Stopped

log = logger("holdfast.worker")

ANSWER_MS = 250
"""How long a step whose time has come waits for the store's answer before it looks again."""


class StepPermits:
    """The permits of one attempt. On the worker's loop."""

    def __init__(self, attempt: Attempt, admissions: Admissions) -> None:
        self._attempt = attempt
        self._admissions = admissions
        self._held: dict[str, tuple[Sequence[Limit], Ask]] = {}
        """What each running step holds, by path."""
        self._backs: dict[str, Ask] = {}
        """How each step that has ended gives them back, by path, until that is written."""
        self._giving_back: dict[str, asyncio.Task[None]] = {}
        self._settled: dict[tuple[str, str], int] = {}
        """The units that a step has really used of a limit, by path and name, where its code says so."""
        self._fixed: dict[int, tuple[Use, ...] | None] = {}
        """What every call of a step needs, by its spec's identity; None if that depends on the call's arguments."""
        self._opening = asyncio.Lock()
        self._has_budget = False
        """Whether the store has the job's budget, and knows what earlier leases spent."""

    @classmethod
    def of(cls, attempt: Attempt) -> "StepPermits":
        """Return the permits of an attempt, created on first use. From then on its records go with its asks."""
        if attempt.permits is None:
            assert attempt.admissions is not None
            attempt.permits = permits = cls(attempt, attempt.admissions)
            attempt.has_asked = True
            attempt.journal.write_with = permits._write
        assert isinstance(attempt.permits, cls)
        return attempt.permits

    # Asking.

    async def acquire(self, call: Call) -> None:
        """Get the permits for the next try of a step, or wait for them."""
        attempt, path = self._attempt, call.path
        self._check_nesting(call)
        uses = self._uses(call)
        if (before := self._giving_back.get(path)) is not None:
            await asyncio.wait([before])
        call.asks += 1
        job = attempt.job
        if job.options.budget:
            uses = (*budget_uses(job, call.cost()), *uses)
            await self._open_budget()
        ask = Ask(job=job.id, epoch=job.epoch, path=path, uses=uses, try_number=call.asks)
        waiting = Waiting(ask, attempt)
        try:
            answer = await attempt.persist(lambda: self._admissions.ask(waiting))
            if not isinstance(answer, Conflict) and not answer.admitted:
                await self._wait(call, waiting)
                answer = waiting.last.result()
            if isinstance(answer, Conflict):
                attempt.halt(LOST)
                raise Stopped(f"{answer.reason}: job {job.id}, epoch {job.epoch}")
            await attempt.admit()  # the fence may have closed meanwhile
        except BaseException:
            self._admissions.leave(waiting)
            raise
        self._held[path] = (call.spec.limits, ask)

    async def acquire_again(self, call: Call) -> None:
        """The same for a step that was running before, and isn't while it waits."""
        progress = self._attempt.progress
        progress.pause_step(call.path)
        token = PATH.set(call.parent)
        try:
            await self.acquire(call)
        finally:
            PATH.reset(token)
            progress.resume_step(call.path, call.spec)

    async def _wait(self, call: Call, waiting: Waiting) -> None:
        """Wait in line. The job may give up its slot meanwhile, unless this step is inside another one."""
        attempt = self._attempt
        progress = attempt.progress
        path, info = call.waiting_record()
        await self._check_burst(call, waiting)
        pending: PendingWait[None] = PendingWait(path, _wait_of(waiting), lambda: _poll(waiting, pending), info)
        pending.stays_until = attempt.loop.time() + attempt.limit_seconds

        def note() -> None:
            if not waiting.last.done():
                progress.note_limited(call.path, waiting.key, waiting.at)
            pending.wake()

        waiting.on_refusal = note
        note()
        with attempt.limit_wait(call.path):
            try:
                if call.parent:  # the step around it runs, so the job keeps its slot
                    await asyncio.wait([waiting.last])
                else:
                    await Suspension.of(attempt).wait(pending)
            finally:
                waiting.on_refusal = None
                progress.clear_limited(call.path)

    async def _check_burst(self, call: Call, waiting: Waiting) -> None:
        """Refuse a cost that can never start, because a person has set a smaller burst than the code declares."""
        attempt, name, units = self._attempt, limit_of(waiting.key), _units(waiting)
        counts_parts = any(one.name == name and one.counts_parts for one in call.spec.limits)
        if waiting.at is None or (units <= UNIT and not counts_parts):  # without parts, a burst has one unit at least
            return
        records = await attempt.persist(lambda: attempt.engine.records(LIMIT + name))
        burst = next((settings_of(one.value).burst for one in records if one.name == LIMIT + name), None)
        if burst is not None and units > burst:
            raise Invalid(
                f"step {call.spec.name}: a cost of {units / UNIT:g} is above the burst of limit {name}, which is "
                f"{burst / UNIT:g} now, so it could never start; see holdfast limits, and set a higher --burst"
            )

    async def _open_budget(self) -> None:
        """Let the store know the job's budget, and what was spent between steps, or by cut steps of earlier leases."""
        attempt = self._attempt
        if self._has_budget and not is_unbooked(attempt):
            return
        async with self._opening:
            if not self._has_budget:
                await attempt.persist(lambda: open_budget(attempt.engine, attempt.job))
                self._has_budget = True
            await book(attempt)

    def settle(self, path: str, limit: str, units: int) -> bool:
        """Note what a step, or one around it, has really used of a limit; return whether it uses that limit."""
        for place in (path, *paths_above(path)):
            if any(one.name == limit for one in self._held.get(place, ((),))[0]):
                self._settled[place, limit] = units
                return True
        return False

    def _uses(self, call: Call) -> tuple[Use, ...]:
        """What a call needs of its limits, by its arguments."""
        if not call.spec.limits:
            return ()
        spec = call.spec
        if call.uses is None:
            call.uses = self._fixed.get(id(spec))
        if call.uses is None:
            attempt = self._attempt
            job = attempt.job
            facts = {"host": socket.gethostname(), "queue": job.queue, "type": job.type}
            call.uses = uses_of(f"step {spec.name}", spec.limits, call.bound_arguments(), facts)
        return call.uses

    def _check_nesting(self, call: Call) -> None:
        """Refuse what could wait for itself forever, or a limit that no worker of this job declares."""
        job, spec = self._attempt.job, call.spec
        if not call.parent and id(spec) in self._fixed:
            return  # it was checked before, and no step is around it
        own = {limit_of(use.key) for use in job.options.limits}
        around = [(path, one) for path in paths_above(call.path) for one in self._held.get(path, ((),))[0]]
        for limit in spec.limits:
            home = limit.home
            if not isinstance(home, Registry) or not home.is_home_of(self._attempt.spec.function, job.type):
                raise Invalid(
                    f"step {spec.name}: limit {limit.name} belongs to another App than job {job.type}; declare it with "
                    "the App of the job"
                )
            if limit.name in own:
                raise Invalid(
                    f"step {spec.name} asks for limit {limit.name}, which its job holds already, so it could wait "
                    "forever; give the limit to the job or to the step, not to both"
                )
            for path, held in around:
                if held.name == limit.name:
                    raise Invalid(
                        f"step {spec.name} asks for limit {limit.name}, which step {path} around it holds already, so "
                        "it could wait forever; give the limit to one of them"
                    )
                _check_order(f"step {spec.name}", limit, f"step {path} around it", held)
            if call.parent:  # only then the job keeps its slot and its permits while the step waits
                for held in home.limits():
                    if held.name in own:
                        _check_order(f"step {spec.name}, inside step {call.parent},", limit, "its job", held)
        self._fixed[id(spec)] = fixed_uses(spec.limits)

    # Giving back.

    def give_back(self, path: str) -> None:
        """Give back what a step holds. Nobody waits for it; without it, the permit ends with the lease."""
        if path not in self._held:
            return
        attempt, back, frees = self._attempt, self._back(path), self._keys(path)
        self._forget(path)
        if attempt.stop is not None:
            return

        async def write() -> None:
            try:
                await attempt.persist(lambda: self._admissions.write((), [back], frees))
            except HoldfastError as error:  # the attempt was stopped meanwhile
                log.debug("job %s: step %s keeps its permit until its lease ends: %s", back.job, path, error)
            finally:
                self._giving_back.pop(path, None)

        self._giving_back[path] = attempt.loop.create_task(write(), name=f"holdfast permit {path}")

    def _back(self, path: str) -> Ask:
        """Return how a step gives back what it holds: with what it has really used."""
        if path not in self._backs:
            ask = self._held[path][1]
            settles = (*self._budget_settles(path, ask), *self._limit_settles(path, ask))
            back = Ask(job=ask.job, epoch=ask.epoch, path=path, try_number=ask.try_number, settles=settles)
            self._backs[path] = back
        return self._backs[path]

    def _budget_settles(self, path: str, ask: Ask) -> tuple[Use, ...]:
        ledger, job = self._attempt.progress.ledger, self._attempt.job
        if not job.options.budget:
            return ()
        reserved = {parts_of(use.key)[1]: use.units for use in ask.uses if is_budget(use.key)}
        spent = {} if ledger is None else added(ledger.take_ended(path), ledger.take_unbooked())
        return settles_of(job, reserved, spent)

    def _limit_settles(self, path: str, ask: Ask) -> list[Use]:
        if not self._settled:
            return []
        used = [(use, self._settled.pop((path, limit_of(use.key)), use.units)) for use in ask.uses]
        return [Use(use.key, units - use.units) for use, units in used if units != use.units]

    def _keys(self, path: str) -> list[str]:
        return [use.key for use in self._held[path][1].uses]

    def _forget(self, path: str) -> None:
        self._held.pop(path, None)
        self._backs.pop(path, None)

    async def _write(self, steps: Sequence[Step]) -> Sequence[Recorded | Conflict]:
        """Record steps; with those that end, their permits end in the same act."""
        ended = [step.path for step in steps if step.state is not StepState.STARTED and step.path in self._held]
        backs = [self._back(path) for path in ended]
        frees = [key for path in ended for key in self._keys(path)]
        answers = await self._admissions.write(steps, backs, frees)
        for path in ended:
            self._forget(path)
        return answers


def _check_order(who: str, limit: Limit, holder: str, held: Limit) -> None:
    """Refuse to ask for a limit while one is held that comes after it: another job may do so the other way round."""
    if held.at_once and limit.at_once and limit.name < held.name:
        raise Invalid(
            f"{who} asks for limit {limit.name} while {holder} holds limit {held.name}: two that do so in opposite "
            "orders could wait for each other forever; give both limits to the outer one, or choose names so that the "
            "outer limit comes first in the alphabet"
        )


async def _poll(waiting: Waiting, pending: PendingWait[None]) -> list[None] | None:
    if waiting.last.done():
        return [None]
    pending.wait = _wait_of(waiting)
    return None


def _wait_of(waiting: Waiting) -> Wait:
    """What wakes the job: room under a key. A claim knows of room for one unit; for more, time tells."""
    if is_budget(waiting.key):
        return Wait(WaitKind.LIMIT, waiting_key(waiting.key, _units(waiting)))
    if waiting.at is not None and _units(waiting) > UNIT:
        return Wait(WaitKind.TIME, until=max(waiting.at, waiting.asker.now() + ANSWER_MS))
    return Wait(WaitKind.LIMIT, waiting.key)


def _units(waiting: Waiting) -> int:
    return max((use.units for use in waiting.ask.uses if use.key == waiting.key), default=0)


def permits_of(call: Call) -> StepPermits | None:
    """Return the permits that a call needs; None if it needs none."""
    return StepPermits.of(call.attempt) if call.needs_permits else None
