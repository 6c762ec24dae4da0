"""What a seed stands for, as data: the store, the workers, the jobs, who asks what, and what goes wrong when.

Everything is drawn here, before anything runs, so that a plan can be read, and made smaller piece by piece. Each seed
has some kinds of faults and not others: rare ways lead through few of them. Must not run anything.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from holdfast import Unique
from tests.simulation.wire import Odds

CALM_SEEDS = 0.08
"""How many seeds have no faults at all, so that the laws of fair weather are tried too."""

FAULT_CHANCES = (0.1, 0.2, 0.5)
"""How likely each kind of fault is to be among those of a seed: few of them, some, or many."""

WIRE_FAULTS = ("lost", "unanswered", "late", "twice", "slow", "deaf")
BLOWS = ("kill", "hold", "stall", "stop", "cut", "away", "jump", "massacre", "pause", "echo", "ambush", "caller", "nod")
TWO_APPS = 0.4
"""In how many seeds two apps share the queues."""

UNSAID = ("fan", "stale")
"""What an old worker doesn't know, in a deploy that brings these."""

ONCE_A_RUN = frozenset({"massacre", "away", "pause", "caller"})
QUEUES = ("default", "fast")


@dataclass(frozen=True)
class Tuning:
    """The settings of all workers, in seconds."""

    lease: float
    beat: float
    look: float
    poll: float
    upkeep: float
    grace: float


@dataclass(frozen=True)
class Hand:
    """A worker that is there from the start. `unsaid` are the types of job that it doesn't know."""

    queues: tuple[str, ...]
    at_once: int
    unsaid: tuple[str, ...] = ()


@dataclass(frozen=True)
class Errand:
    """A job to submit: when, by which caller, its shape with its arguments, and the options of `submit`."""

    at: float
    caller: int
    shape: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    tries: int


@dataclass(frozen=True)
class Ask:
    """What a caller asks of a job: of the how-manieth errand, so long after it was submitted."""

    after: float
    caller: int
    errand: int
    kind: str


@dataclass(frozen=True)
class Blow:
    """A fault that strikes at a moment: what, for how long, and a number in [0, 1) that picks the victim."""

    at: float
    kind: str
    seconds: float
    pick: float


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: int
    engine: str
    tuning: Tuning
    odds: Odds
    lateness: float
    drift: float
    sees_deaths: bool
    span: float
    callers: int
    hands: tuple[Hand, ...]
    errands: tuple[Errand, ...]
    asks: tuple[Ask, ...]
    blows: tuple[Blow, ...]
    apps: tuple[tuple[str, ...], ...] = ((),)
    """The apps that share the queues, each by the types that it doesn't know. Together they know all."""
    every: float = 0.0
    """How many seconds are between two ticks of the schedule that all workers declare; 0 without one."""

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong."""
        wires = any(getattr(self.odds, name) for name in WIRE_FAULTS)
        return not wires and not self.blows and not self.has_poison

    @property
    def has_poison(self) -> bool:
        """Whether a job kills workers, ends or blocks their loop, or tells them to stop."""
        return any(errand.shape in VIOLENT for errand in self.errands)

    @property
    def jumps(self) -> bool:
        """Whether somebody sets the store's clock."""
        return any(blow.kind == "jump" for blow in self.blows)


VIOLENT = frozenset({"poison", "unloop", "resign", "block"})
"""Shapes that bring a fault of their own."""

NEED_A_PERSON = frozenset({"doomed", "poison", "unloop", "resign", "plodder", "buy", "lodge"})
"""Shapes that often come to review."""

LISTENING = frozenset({"listen", "juggle", "hurry"})
"""Shapes that wait for signals."""

FEWEST_SHAPES, MOST_SHAPES = 3, 10
"""How many shapes of jobs a seed has: like the faults, some and not others."""


def draw_plan(seed: int, engine: str, shapes: dict[str, float]) -> Plan:
    """The plan of a seed. `shapes` are the shapes of jobs that there are, and how often each is taken."""
    random = Random(f"plan/{seed}")
    calm = random.random() < CALM_SEEDS
    chance = random.choice(FAULT_CHANCES)
    kinds = [kind for kind in (*WIRE_FAULTS, *BLOWS) if not calm and random.random() < chance]
    lease = random.uniform(2.0, 8.0)
    tuning = Tuning(
        lease=lease,
        beat=lease / random.uniform(3.1, 6.0),
        look=lease / random.uniform(1.5, 5.0),
        poll=random.uniform(1.0, 6.0),
        upkeep=random.uniform(1.0, 4.0),
        grace=random.uniform(0.2, 3.0),
    )
    span = random.uniform(8.0, 20.0)
    callers = random.randint(1, 3)
    hands = tuple(_hand(random, number) for number in range(random.randint(1, 3)))
    apps = _apps(seed, shapes)
    if len(apps) > 1:
        hands = tuple(replace(hand, unsaid=apps[number % len(apps)]) for number, hand in enumerate(hands))
    some = random.sample(sorted(shapes), random.randint(FEWEST_SHAPES, MOST_SHAPES))
    shapes = {name: shapes[name] for name in some if not (calm and name in VIOLENT)} or {"line": 1.0}
    errands = tuple(_errand(random, span, callers, shapes) for _ in range(random.randint(5, 12)))
    return Plan(
        seed=seed,
        engine=engine,
        tuning=tuning,
        odds=_odds(random, kinds),
        lateness=random.choice([0.0, 0.001, 0.02]),
        drift=random.choice([0.0, 0.001, 0.02]),
        sees_deaths=random.random() < 0.6,
        span=span,
        callers=callers,
        hands=hands,
        errands=errands,
        asks=_asks(random, errands, callers),
        blows=_blows(random, kinds, span, tuning),
        apps=apps,
    )


def drowsy(plan: Plan) -> Plan:
    """A plan in which nothing goes wrong but that workers stop for a while, and that keepers sleep while they judge."""
    random, lease = Random(f"drowsy/{plan.seed}"), plan.tuning.lease
    holds = [Blow(random.uniform(1.0, plan.span), "hold", random.uniform(0.5, 1.6) * lease, random.random())]
    nods = [Blow(n * plan.span / 12, "nod", random.uniform(0.3, 1.5) * lease, random.random()) for n in range(12)]
    errands = [
        replace(one, at=one.at / 3, shape=random.choice(["plodder", "pace"]), options={}) for one in plan.errands
    ]
    return replace(
        plan,
        odds=Odds(quick_seconds=0.005),
        hands=tuple(Hand(QUEUES, 2) for _ in range(3)),
        errands=tuple(errands),
        asks=(),
        blows=tuple(sorted(holds + nods, key=lambda blow: blow.at)),
    )


def shared(plan: Plan) -> Plan:
    """A plan in which nothing goes wrong, and two apps share the queues: one has long jobs, the other short ones."""
    shapes = ("pace", "pace", "line")
    errands = [
        replace(one, at=one.at / 3, shape=shapes[number % 3], options={}) for number, one in enumerate(plan.errands)
    ]
    apps = (("line",), ("pace",))
    hands = (Hand(QUEUES, 1, apps[0]), Hand(QUEUES, 3, apps[1]))
    odds = Odds(quick_seconds=0.005)
    return replace(plan, odds=odds, hands=hands, apps=apps, errands=tuple(errands), asks=(), blows=())


def unruly(plan: Plan) -> Plan:
    """A plan in which every other job ends the event loop of its worker."""
    errands = [replace(one, shape="unloop") if number % 2 else one for number, one in enumerate(plan.errands)]
    return replace(plan, errands=tuple(errands), asks=())


def hasty(plan: Plan) -> Plan:
    """A plan in which every job waits for signals in short waits, one after another, and many signals come."""
    random = Random(f"hasty/{plan.seed}")
    errands = [replace(one, shape="hurry", args=(1, one.args[1]), options={}) for one in plan.errands]
    asks = [
        Ask(random.uniform(0.0, 4.0), random.randrange(plan.callers), number, "signal")
        for number in range(len(errands))
        for _ in range(8)
    ]
    return replace(plan, errands=tuple(errands), asks=tuple(asks))


LIMITED: dict[str, float] = {}
"""The shapes that share limits, and how often each is taken (`tests.simulation.limited`)."""


def limited(plan: Plan) -> Plan:
    """A plan with twice as many jobs, of which most share limits, and a person who changes a limit."""
    random = Random(f"limited/{plan.seed}")
    names, weights = list(LIMITED), list(LIMITED.values())
    errands = [
        replace(one, shape=random.choices(names, weights)[0]) if random.random() < 0.8 else one
        for one in (*plan.errands, *plan.errands)
    ]
    asks = [Ask(random.uniform(0.0, 6.0), 0, random.randrange(len(errands)), kind) for kind in ("lower", "raise")]
    return replace(plan, errands=tuple(errands), asks=(*plan.asks, *asks))


ORDERLY: dict[str, float] = {}
"""The shapes that take turns, or of which there is one at a time, and how often each is taken."""

ONE_OF: dict[str, Unique] = {}
"""Of which of them there is one at a time, and what makes it so (`tests.simulation.orderly`)."""

TICK_SECONDS = 1.7
"""How often the schedule fires."""


def orderly(plan: Plan) -> Plan:
    """A plan with a schedule and three times as many jobs, all of which take turns or are unique.

    In every other one, nothing goes wrong but that workers die and stop.
    """
    random = Random(f"orderly/{plan.seed}")
    names, weights = list(ORDERLY), list(ORDERLY.values())
    errands = tuple(
        replace(
            one,
            at=random.uniform(0.0, plan.span * 0.7),
            shape=shape,
            options={"unique": ONE_OF[shape]} if shape in ONE_OF else {},
        )
        for one in plan.errands * 3
        for shape in random.choices(names, weights)
    )
    hands = tuple(Hand(hand.queues, min(hand.at_once, 2)) for hand in plan.hands)
    plan = replace(plan, hands=hands, apps=((),), errands=errands, every=TICK_SECONDS)
    if plan.seed % 2:
        return plan
    ends = ("kill", "kill", "stop", "massacre")
    blows = [Blow(random.uniform(1.0, plan.span), random.choice(ends), 0.0, random.random()) for _ in range(5)]
    return replace(plan, odds=Odds(quick_seconds=0.005), blows=tuple(sorted(blows, key=lambda blow: blow.at)))


def smaller(plan: Plan) -> list[Plan]:
    """The plans that are a piece smaller, the largest pieces first."""
    faults = [name for name in WIRE_FAULTS if getattr(plan.odds, name)]
    blows, asks = len(plan.blows) // 2, len(plan.asks) // 2
    return [
        *(replace(plan, blows=half) for half in (plan.blows[:blows], plan.blows[blows:]) if blows),
        *(replace(plan, asks=half) for half in ((), plan.asks[:asks], plan.asks[asks:]) if asks),
        *(replace(plan, odds=replace(plan.odds, **{name: 0.0})) for name in faults),
        *([replace(plan, lateness=0.0)] if plan.lateness else []),
        *([replace(plan, drift=0.0)] if plan.drift else []),
        *(replace(plan, blows=_less(plan.blows, place)) for place in range(len(plan.blows))),
        *(_without_errand(plan, number) for number in range(len(plan.errands))),
        *(replace(plan, asks=_less(plan.asks, place)) for place in range(len(plan.asks))),
        *(replace(plan, hands=_less(plan.hands, place)) for place in range(len(plan.hands))),
    ]


def _less(pieces: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return pieces[:place] + pieces[place + 1 :]


def _without_errand(plan: Plan, number: int) -> Plan:
    asks = tuple(replace(ask, errand=ask.errand - (ask.errand > number)) for ask in plan.asks if ask.errand != number)
    return replace(plan, errands=_less(plan.errands, number), asks=asks)


def _hand(random: Random, number: int) -> Hand:
    queues = random.choice([QUEUES, QUEUES, QUEUES[::-1]])
    return Hand(queues, random.choice([1, 2, 3, 8]), UNSAID if number > 0 and random.random() < 0.1 else ())


def _apps(seed: int, shapes: dict[str, float]) -> tuple[tuple[str, ...], ...]:
    """One app, or two on the same queues: of the types each knows some alone, and some both know, or none."""
    random = Random(f"apps/{seed}")
    if random.random() >= TWO_APPS:
        return ((),)
    names = random.sample(sorted(shapes), len(shapes))
    first = len(names) // 2
    shared = random.choice([0, len(names) // 4])
    return tuple(sorted(names[:first])), tuple(sorted(names[first + shared :]))


def _odds(random: Random, kinds: list[str]) -> Odds:
    chances = {kind: random.choice([0.01, 0.03, 0.1]) for kind in WIRE_FAULTS if kind in kinds}
    if "deaf" in chances:
        chances["deaf"] = random.choice([0.2, 0.9])
    return Odds(quick_seconds=random.choice([0.001, 0.01, 0.05]), slow_seconds=random.uniform(0.3, 2.5), **chances)


def _errand(random: Random, span: float, callers: int, shapes: dict[str, float]) -> Errand:
    (shape,) = random.choices(list(shapes), list(shapes.values()))
    options: dict[str, Any] = {}
    if random.random() < 0.25:
        options["delay"] = round(random.uniform(0.1, 6.0), 3)
    if random.random() < 0.25:
        options["priority"] = random.randint(-3, 3)
    if random.random() < 0.25:
        options["queue"] = random.choice(QUEUES)
    if random.random() < 0.15:
        options["expires"] = round(random.uniform(0.5, 8.0), 3)
    if random.random() < 0.3:
        options["key"] = f"key-{random.randint(1, 3)}"
    args = (random.randint(1, 4), random.randint(1, 3))
    return Errand(
        random.uniform(0.0, span * 0.7), random.randrange(callers), shape, args, options, random.randint(1, 4)
    )


def _asks(random: Random, errands: tuple[Errand, ...], callers: int) -> tuple[Ask, ...]:
    asks: list[Ask] = []

    def ask(kind: str, number: int, after: float) -> None:
        asks.append(Ask(after, random.randrange(callers), number, kind))

    for number, errand in enumerate(errands):
        if random.random() < 0.2:
            ask("cancel", number, random.expovariate(0.5))
        if random.random() < 0.3:
            ask("result", number, random.uniform(0.0, 2.0))
        if random.random() < 0.2:
            ask("look", number, random.uniform(0.0, 3.0))
        for _ in range(random.randint(1, 2) if errand.shape in NEED_A_PERSON else 0):
            ask("person", number, random.uniform(3.0, 15.0))
        for _ in range(random.choice([0, 1, 2, 3] if errand.shape in LISTENING else [0, 0, 0, 1, 2])):
            ask("signal", number, random.expovariate(0.4))
        if errand.shape == "staged":
            ask("activate", number, random.expovariate(0.4))
    return tuple(asks)


def _blows(random: Random, kinds: list[str], span: float, tuning: Tuning) -> tuple[Blow, ...]:
    blows: list[Blow] = []
    for kind in BLOWS:
        for _ in range(0 if kind not in kinds else 1 if kind in ONCE_A_RUN else random.randint(1, 4)):
            seconds = random.uniform(0.1, 3.0) * tuning.lease
            if kind == "jump":
                seconds = random.choice([-1, 1]) * 10 ** random.uniform(-1, 2)
            blows.append(Blow(random.uniform(0.0, span), kind, seconds, random.random()))
    return tuple(sorted(blows, key=lambda blow: blow.at))
