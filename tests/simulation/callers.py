"""Callers: processes that submit jobs and ask for things, and write down what they asked and what they heard.

Well, refused, or unknown when the store didn't answer: then both may be true. Must not judge any of it.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.codec import canonical
from holdfast.core.errors import HoldfastError, JobError, StoreError
from holdfast.core.model import State, WaitKind, Where
from holdfast.core.outcome import in_doubt
from holdfast.jobs.limits import set_limit
from holdfast.jobs.schedules import pause_schedule
from holdfast.jobs.service import JobRequest, Jobs
from tests.simulation.plan import Ask, Errand
from tests.simulation.scene import Program, program
from tests.simulation.shapes import TEMPLATE, job
from tests.simulation.stage import AGAIN_SECONDS, DRAWN, Stage, insistently
from tests.simulation.strands import Task

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"

SCHEDULED = "regular"
"""The name of the schedule that all workers declare."""

RESULT_SECONDS = 120
"""How long a caller waits for a result."""


@dataclass
class Said:
    """What a caller asked, and what came of it. `outcome` stays unknown when nobody answered."""

    at: float
    who: str
    kind: str
    job: str
    given: Any = None
    outcome: str = UNKNOWN
    heard: Any = None
    until: float | None = None
    drawn: set[str] = field(default_factory=set)

    @property
    def key(self) -> tuple[str, str] | None:
        """The type and the idempotency key of what was submitted."""
        key = self.given.options.get("key") if isinstance(self.given, Errand) else None
        return None if key is None or self.given.shape == "staged" else (self.given.shape, key)


class Callers:
    """All callers of a run, and what they said."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.said: list[Said] = []
        self.processes: list[Program] = []
        self.pauses: list[tuple[str, float, float]] = []
        """Queues that were paused, from when to when."""
        self.is_paused = not stage.plan.every
        """Whether the schedule is paused, so that no more jobs come."""
        self._runs: dict[int, str] = {}
        self._errands: list[tuple[Program, Task]] = []
        self._signals = 0

    def open(self) -> None:
        """Everybody begins."""
        plan = self.stage.plan
        self.processes = [self.stage.process(f"c-{number}") for number in range(plan.callers)]
        for number, errand in enumerate(plan.errands):
            caller = self.processes[errand.caller]
            self._errands.append((caller, caller.begin(self._submit(number, errand))))
        for ask in plan.asks:
            self.processes[ask.caller].begin(self._ask(ask))

    def is_quiet(self) -> bool:
        """Whether nobody is about to submit anything any more, or to send a job on that needs a person."""
        deciding = any(said.until is None and said.kind in PERSON for said in self.said)
        asked = all(task.done() or not process.alive for process, task in self._errands)
        return self.is_paused and not deciding and asked

    async def say(self, kind: str, job: str, given: Any, work: Awaitable[Any]) -> Said:
        """Ask for something, and write down what was heard."""
        said = Said(self.stage.world.now, program().name, kind, job, given)
        self.said.append(said)
        DRAWN.set(said.drawn)
        try:
            said.heard = await work
            said.outcome = OK
        except StoreError:
            said.outcome = UNKNOWN
        except (HoldfastError, TimeoutError) as error:
            said.outcome, said.heard = REFUSED, error
        said.until = self.stage.world.now
        self.stage.tell(said.who, kind, said.outcome)
        return said

    async def _submit(self, number: int, errand: Errand) -> None:
        await asyncio.sleep(errand.at)
        for _ in range(errand.tries):
            said = await self.say("submit", "", errand, self._order(errand))
            if said.outcome == OK:
                said.job = self._runs[number] = said.heard
            if said.outcome != UNKNOWN:
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _order(self, errand: Errand) -> str:
        app = program().app
        if errand.shape != "staged":
            run = await job(errand.shape, app).submit(*errand.args, **errand.options)
            return run.id
        spec = TEMPLATE.registry.get("staged")
        assert spec is not None
        order = JobRequest(type="staged", args=canonical(list(errand.args)), pending=True, options=spec.options)
        (accepted,) = await app.jobs.submit([order])
        return accepted.id

    async def _ask(self, ask: Ask) -> None:
        await asyncio.sleep(self.stage.plan.errands[ask.errand].at + ask.after)
        id = self._runs.get(ask.errand)
        if id is None:
            return
        app = program().app
        match ask.kind:
            case "cancel":
                await self.say("cancel", id, None, app.jobs.cancel(id))
            case "activate":
                await self.say("activate", id, None, app.jobs.activate(id))
            case "signal":
                await self._signal(app.jobs, id)
            case "result":
                run = await insistently(lambda: app.run(id))
                await self.say("result", id, None, _result(run))
            case "look":
                for _ in range(3):
                    await self.say("look", id, None, app.jobs.status(id))
                    await asyncio.sleep(self.stage.random.random())
            case "person":
                await self._decide(app.jobs, id)
            case "lower" | "raise":
                at_once = 1 if ask.kind == "lower" else 3
                await self.say(ask.kind, id, None, set_limit(app.jobs.engine, "pair", at_once=at_once, by="a person"))

    async def _signal(self, jobs: Jobs, id: str) -> None:
        self._signals += 1
        value = self._signals
        await self.say("signal", id, value, jobs.signal(id, "go", value))

    async def _decide(self, jobs: Jobs, id: str) -> None:
        """A person who looks after a job in review."""
        looked = await self.say("look", id, None, jobs.status(id))
        if looked.outcome != OK or looked.heard.state is not State.REVIEW:
            return
        doubts = in_doubt(await insistently(lambda: jobs.engine.steps(id)))
        kind = self.stage.random.choice(IN_DOUBT if doubts else IN_REVIEW)
        calls = {
            "replay": lambda: jobs.replay(id),
            "resolve": lambda: jobs.resolve(id, ["by hand"]),
            "discard": lambda: jobs.discard(id),
            "step": lambda: jobs.resolve_step(id, doubts[0], "by hand"),
            "again": lambda: jobs.resolve_step(id, doubts[0], again=True),
        }
        await self.say(kind, id, doubts[:1], calls[kind]())

    def pause(self, queue: str, seconds: float) -> None:
        """Somebody pauses a queue, and resumes it when this time or that of the faults is over."""
        self.stage.process(f"c-pause-{len(self.pauses)}").begin(self._pause(queue, seconds))

    async def _pause(self, queue: str, seconds: float) -> None:
        world, jobs = self.stage.world, program().app.jobs
        await insistently(lambda: jobs.pause(queue))
        since = world.now
        await asyncio.sleep(max(0.0, min(seconds, self.stage.plan.span - world.now)))
        until = world.now
        await insistently(lambda: jobs.resume(queue))
        self.pauses.append((queue, since, until))

    def close(self) -> None:
        """The faults are over: every job gets what it waits for."""
        self.stage.process("c-end").begin(self._give())
        if not self.is_paused:
            self.stage.process("c-schedule").begin(self._end_schedule())

    async def _end_schedule(self) -> None:
        """Pause the schedule, when a new leader has had time to fire what the last one left."""
        tuning, jobs = self.stage.plan.tuning, program().app.jobs
        await asyncio.sleep(2.5 * tuning.lease + 3 * tuning.look + 2 * tuning.upkeep + 3.0)
        await insistently(lambda: pause_schedule(jobs.engine, SCHEDULED, by="a person"))
        self.is_paused = True

    async def _give(self) -> None:
        """Give every waiting job what it waits for, and look once after each that needs a person."""
        jobs = program().app.jobs
        decided: set[str] = set()
        while True:
            async for stuck in jobs.walk(Where(states=(State.REVIEW,))):
                if stuck.id not in decided:
                    decided.add(stuck.id)
                    if self.stage.random.random() < 0.5:
                        await self._decide(jobs, stuck.id)
            async for waiting in jobs.walk(Where(states=(State.PENDING,))):
                kinds = {wait.kind for wait in waiting.waits}
                if any(wait.name == "go" for wait in waiting.waits):
                    await self._signal(jobs, waiting.id)
                elif WaitKind.ACTIVATION in kinds:
                    await self.say("activate", waiting.id, None, jobs.activate(waiting.id))
            await asyncio.sleep(1.0)


IN_REVIEW = ("replay", "replay", "resolve", "discard")
IN_DOUBT = ("step", "again", "replay")
PERSON = frozenset({*IN_REVIEW, *IN_DOUBT})
"""What a person does about a job in review."""


async def _result(run: Any) -> Any:
    try:
        return await run.result(timeout=RESULT_SECONDS)
    except JobError as error:
        return type(error).__name__
