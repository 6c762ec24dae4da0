"""The givens of the laws about shared limits: limits, jobs and steps that ask, and acts on them. Holds no law."""

from msgspec import json

from holdfast.conformance.given import (
    StoreClock,
    done,
    inserted,
)
from holdfast.core.model import (
    Admission,
    Ask,
    Conflict,
    Event,
    Job,
    Options,
    Use,
    Wait,
    WaitKind,
)
from holdfast.core.shared_limits import (
    LIMIT,
    UNIT,
    Settings,
    settings_from,
)
from holdfast.engines.contract import Engine

ENDS = [Event.COMPLETE, Event.FAIL, Event.EXHAUST, Event.RELEASE, Event.SUSPEND, Event.REST]
BREAKS = [Event.LAPSE, Event.OVERRUN, Event.ABANDON, Event.CANCEL]
SOON = 2.0
"""How long a wake-up may take, in seconds."""


async def set_limit(engine: Engine, name: str = "api", settings: Settings | None = None, **given: object) -> None:
    """Write a limit's settings, as a worker does that starts."""
    settings = settings or settings_from(name, **given)
    await engine.put_record(LIMIT + name, json.encode(settings).decode())


def uses(*keys: str, units: int = UNIT) -> Options:
    """The options of a job that needs a permit of each of these keys."""
    return Options(limits=tuple(Use(key, units) for key in keys))


async def limited(engine: Engine, clock: StoreClock, *keys: str, **fields: object) -> Job:
    """A job in the store that needs permits."""
    return await inserted(engine, clock, **{"options": uses(*(keys or ("api",)))} | fields)


async def take(
    engine: Engine, limit: int = 10, queues: tuple[str, ...] = ("default",), worker: str = "w-1"
) -> list[Job]:
    """Claim jobs of some queues."""
    return await engine.claim(worker, list(queues), limit)


def ids(jobs: list[Job]) -> list[str]:
    """The ids of jobs."""
    return [job.id for job in jobs]


def ask(held: Job, path: str = "draw#1", *keys: str, units: int = UNIT, try_number: int = 1) -> Ask:
    """What a step of a claimed job asks for."""
    asked = tuple(Use(key, units) for key in (keys or ("api",)))
    return Ask(job=held.id, epoch=held.epoch, path=path, uses=asked, try_number=try_number)


def give_back(held: Job, path: str = "draw#1", *settles: Use) -> Ask:
    """A step of a claimed job gives its permits back."""
    return Ask(job=held.id, epoch=held.epoch, path=path, settles=settles)


async def admit(engine: Engine, *asks: Ask) -> list[Admission | Conflict]:
    """Ask, with no records before it."""
    answers, recorded = await engine.admit(list(asks))
    assert recorded == []
    return answers


async def is_admitted(engine: Engine, one: Ask) -> bool:
    """Whether a step gets its permits."""
    [answer] = await admit(engine, one)
    assert isinstance(answer, Admission), answer
    return answer.admitted


async def suspended(engine: Engine, clock: StoreClock, held: Job, key: str = "api") -> Job:
    """A job that gives up its slot, because a step of it waits for a permit."""
    return await done(engine, clock, held, Event.SUSPEND, waits=(Wait(WaitKind.LIMIT, key),))
