"""What a replay would do, before anybody asks for it: what runs again, what is kept, what is in doubt, time and money.

Must not change anything. What runs after the failed steps, how long it takes and what it costs is estimated from the
newest completed runs of the same type.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from msgspec import Struct

from holdfast.core.changes import replay
from holdfast.core.keys import quoted_name
from holdfast.core.model import PAGE_LIMIT, Entry, Job, State, Step, StepState, Where
from holdfast.core.outcome import ARGS_PATH, is_once
from holdfast.core.places import places_in, still_used
from holdfast.core.reruns import SAVED_PATH
from holdfast.core.spending import SPENT_PATH, Amounts, added, amounts_in, in_words
from holdfast.core.summaries import StepSummary, is_step
from holdfast.engines.contract import Engine
from holdfast.jobs.replays import doubts_left, recorded_failures, said_of
from holdfast.jobs.selections import Selection, read_all
from holdfast.jobs.service import Jobs, history_of
from holdfast.jobs.views.step_names import name_steps
from holdfast.jobs.views.text import name_some, plural, short_id, span

NAMES_READ = 20
"""About how many names of steps to come a recent run is asked whether they are effects."""

SAMPLED = 20
"""In how many of many jobs of a type a plan looks which of their steps are effects."""

RECENT = 3
"""How many completed runs the estimates come from."""


class Typical(Struct, frozen=True):
    """What recent runs of a type had in common: their steps by name, how long each took, and what it cost."""

    runs: int = 0
    newest: str = ""
    """The id of the newest of them."""
    ms: int = 0
    counts: Mapping[str, float] = {}
    ms_each: Mapping[str, float] = {}
    """For the outermost steps only: the time of an inner step is part of the outer one's."""
    spent_each: Mapping[str, Amounts] = {}

    def missing(self, summary: StepSummary) -> dict[str, int]:
        """How many steps of each name such a run still has before it, after these: at least those that have failed."""
        done = {name: counts.done for name, counts in summary.names.items()}
        left = {name: round(number) - done.get(name, 0) for name, number in self.counts.items()}
        left |= {name: max(left.get(name, 0), counts.failed) for name, counts in summary.names.items()}
        return {name: number for name, number in left.items() if number > 0}

    def ms_of(self, missing: Mapping[str, int]) -> int | None:
        """How long these steps take, as a part of the whole time; None if nothing is known."""
        whole = sum(number * self.ms_each.get(name, 0) for name, number in self.counts.items())
        part = sum(number * self.ms_each.get(name, 0) for name, number in missing.items())
        return round(self.ms * part / whole) if whole else None

    def spent_of(self, missing: Mapping[str, int]) -> Amounts:
        """What these steps cost."""
        return added(
            *(
                {currency: amount * number for currency, amount in self.spent_each.get(name, {}).items()}
                for name, number in missing.items()
            )
        )


class Plan(Struct, frozen=True, kw_only=True):
    """What a replay of one job would do. Steps are named by their paths, as in `holdfast show --json`."""

    job: str
    type: str
    will_run: tuple[str, ...]
    """The steps that failed, or that a person wants to run again."""
    recorded: tuple[str, ...]
    """The steps that keep their results and don't run."""
    in_doubt: tuple[str, ...]
    """The effects that may have happened and that nobody has decided on. The replay would stop at them."""
    children: tuple[str, ...] = ()
    """The children in review that are replayed with the job."""
    effects: tuple[str, ...] = ()
    """The recorded steps with `effect="once"`. They don't run again."""
    expected: Mapping[str, int] = {}
    """How many steps of each name recent runs had beyond the recorded ones."""
    may_run: tuple[str, ...] = ()
    """With other arguments: the recorded steps that run again if they receive a changed value. The others are kept."""
    first_effects: tuple[str, ...] = ()
    """The names of steps with `effect="once"` that would happen for the first time, as in recent runs."""
    names: Mapping[str, str] = {}
    """What `will_run` and `may_run` are called in `holdfast show`, by path."""
    ms: int | None = None
    """About how long it takes; None if no recent run says so."""
    spent: Amounts = {}
    """About what it costs, in millionths of each currency."""
    runs: int = 0
    """How many recent runs the estimates come from."""
    is_edited: bool = False
    """Whether its arguments change. Whatever receives a changed value then runs, too."""

    def __str__(self) -> str:
        """The plan in one sentence per line."""
        again = f": {name_some([self.names.get(path, path) for path in self.will_run])}" if self.will_run else ""
        lines = [
            f"replay of {self.type} {short_id(self.job)}",
            f"{plural(len(self.will_run), 'step runs', 'steps run')} again{again}",
            f"{plural(len(self.recorded), 'recorded step is', 'recorded steps are')} kept",
        ]
        if self.expected:
            counted = [f"{number:,} {name}" for name, number in self.expected.items()]
            lines.append(f"as in recent runs, it then has about {name_some(counted)} to do")
        if self.is_edited:
            them = f": up to {plural(len(self.may_run), 'recorded step')}" if self.may_run else ""
            lines.append(f"its arguments change, so whatever receives a changed value runs, too{them}")
        if self.children:
            are = "are" if len(self.children) > 1 else "is"
            lines.append(f"{plural(len(self.children), 'child', 'children')} in review {are} replayed with it")
        lines += effect_lines(len(self.effects), self.first_effects)
        if self.in_doubt:
            lines.append(f"in doubt, decide first with holdfast resolve --step: {name_some(self.in_doubt)}")
        if estimate := estimate_words(self.ms, self.spent, self.runs):
            lines.append(estimate)
        return "\n  ".join(lines)


class PlanOfMany(Struct, frozen=True, kw_only=True):
    """What a replay of many jobs would do, in numbers."""

    types: Mapping[str, int]
    will_run: int = 0
    recorded: int = 0
    in_doubt: int = 0
    """How many of the jobs have an effect in doubt. They would need a person again at once."""
    effects: int = 0
    """How many recorded steps have `effect="once"`. They don't run again."""
    first_effects: tuple[str, ...] = ()
    """The names of steps with `effect="once"` that would happen for the first time, as in recent runs."""
    ms: int | None = None
    spent: Amounts = {}
    runs: int = 0

    @property
    def total(self) -> int:
        """How many jobs would be replayed."""
        return sum(self.types.values())

    def __str__(self) -> str:
        """In words."""
        types = name_some([f"{number:,} {type}" for type, number in self.types.items()])
        lines = [
            f"replay of {plural(self.total, 'job')}" + (f": {types}" if types else ""),
            f"{plural(self.will_run, 'failed step runs', 'failed steps run')} again",
            f"{plural(self.recorded, 'recorded step is', 'recorded steps are')} kept",
        ]
        if self.in_doubt:
            lines.append(
                f"{plural(self.in_doubt, 'job has', 'jobs have')} an effect in doubt and would need a person again"
            )
        lines += effect_lines(self.effects, self.first_effects)
        if estimate := estimate_words(self.ms, self.spent, self.runs):
            lines.append(f"{estimate}, all jobs together")
        return "\n  ".join(lines)


def effect_lines(happened: int, first: Sequence[str]) -> list[str]:
    """The effects that a replay touches, in words."""
    lines = [f"{plural(happened, 'effect')} already happened and won't happen again"] if happened else []
    return [*lines, f"effects that would happen for the first time: {name_some(first)}"] if first else lines


def estimate_words(ms: int | None, spent: Amounts, runs: int) -> str:
    """An estimate in words: "about 4 min and $1.20, as in 3 recent runs"."""
    parts = ([span(ms)] if ms is not None else []) + ([money] if (money := in_words(spent)) else [])
    return f"about {' and '.join(parts)}, as in {plural(runs, 'recent run')}" if parts else ""


async def preview_replay(jobs: Jobs, id: str, *, args: str | None = None) -> Plan:
    """Return what a replay of a job in review would do. Raises NotAllowed for any other job."""
    job = await jobs.get(id)
    replay(job, 0, by="")
    records = await jobs.engine.steps(id)
    said = said_of(job)
    doubts = doubts_left(job, records)
    steps = [record for record in records if is_step(record.path)]
    again = [
        step.path for step in steps if step.state is StepState.FAILED or ((one := said.get(step.path)) and one.again)
    ]
    open_ones = {*again, *doubts}
    kept = [path for path in still_used([step.path for step in steps], records) if path not in open_ones]
    is_edited = args is not None and args != job.args
    keyed = {one.path.removeprefix(ARGS_PATH) for one in records if one.path.startswith(ARGS_PATH)}
    may_run = [path for path in kept if path not in keyed] if is_edited else []
    (summary,) = await jobs.engine.summaries([id])
    typical = await read_typical(jobs.engine, job.type)
    missing = typical.missing(summary)
    if may_run:
        lost = Counter(step.name for step in steps if step.path in set(may_run))
        missing = {name: missing.get(name, 0) + lost[name] for name in [*missing, *lost]}
    failed = {step.name for step in steps if step.state is StepState.FAILED}
    expected = {
        name: number
        for name, number in typical.missing(summary).items()
        if name in typical.ms_each and name not in failed
    }
    return Plan(
        job=job.id,
        type=job.type,
        will_run=tuple(again),
        recorded=tuple(path for path in kept if path not in set(may_run)),
        may_run=tuple(may_run),
        in_doubt=tuple(doubts),
        children=await _children_in_review(jobs.engine, job, records),
        effects=tuple(path for path in effect_paths(records) if path not in doubts),
        expected=expected,
        ms=typical.ms_of(missing),
        spent=typical.spent_of(missing),
        runs=typical.runs,
        is_edited=is_edited,
        first_effects=await _first_effects(jobs.engine, records, typical, missing),
        names=_names_of(job, records, [*again, *may_run]),
    )


def _names_of(job: Job, records: Sequence[Step], paths: Sequence[str]) -> dict[str, str]:
    if not paths:
        return {}
    return name_steps(job, [record for record in records if is_step(record.path)], places_in(records), paths)


async def _first_effects(
    engine: Engine, records: Sequence[Step], typical: Typical, missing: Mapping[str, int]
) -> tuple[str, ...]:
    """The steps to come that are effects, as their recorded calls say: here, or in the newest of the recent runs."""
    known = {_name_in(path) for path in effect_paths(records)}
    for name in [name for name in missing if name not in known][:NAMES_READ] if typical.newest else ():
        if effect_paths(await engine.steps_under(typical.newest, f"{ARGS_PATH}{quoted_name(name)}#")):
            known.add(name)
    return tuple(name for name in missing if name in known)


def _name_in(path: str) -> str:
    return unquote(path.rpartition("/")[2].partition("#")[0])


async def preview_replays(jobs: Jobs, chosen: Selection) -> PlanOfMany:
    """Return what a replay of all jobs in review that match would do."""
    types: Counter[str] = Counter()
    will_run = recorded = in_doubt = effects = ms = runs = 0
    once: dict[str, set[str]] = {}
    first: dict[str, None] = {}
    spent: Amounts = {}
    known: dict[str, Typical] = {}
    async for page in read_all(jobs.engine, chosen):
        found = [job for job in page if job.state is State.REVIEW]
        types.update(job.type for job in found)
        for type in {job.type for job in found} - known.keys():
            known[type] = await read_typical(jobs.engine, type)
            alike = [job.id for job in found if job.type == type][:SAMPLED]
            once[type] = await _effect_names(jobs.engine, [*alike, *filter(None, [known[type].newest])])
        for job, summary in zip(found, await jobs.engine.summaries([job.id for job in found]), strict=True):
            total, typical = summary.total, known[job.type]
            will_run, recorded = will_run + total.failed, recorded + total.done
            in_doubt += bool(total.started)
            missing = typical.missing(summary)
            effects += sum(counts.done for name, counts in summary.names.items() if name in once[job.type])
            first |= dict.fromkeys(name for name in missing if name in once[job.type])
            ms, spent = ms + (typical.ms_of(missing) or 0), added(spent, typical.spent_of(missing))
    runs = sum(one.runs for one in known.values())
    return PlanOfMany(
        types=types,
        will_run=will_run,
        recorded=recorded,
        in_doubt=in_doubt,
        effects=effects,
        first_effects=tuple(first),
        ms=ms if runs else None,
        spent=spent,
        runs=runs,
    )


async def _effect_names(engine: Engine, ids: Sequence[str]) -> set[str]:
    """The names of the steps that these jobs have recorded as effects."""
    return {_name_in(path) for path in effect_paths(await engine.steps_under_each(ids, ARGS_PATH))}


def effect_paths(records: Sequence[Step]) -> list[str]:
    """The paths of the steps that were recorded or started as effects, whatever the code says now."""
    return [
        one.path.removeprefix(ARGS_PATH) for one in records if one.path.startswith(ARGS_PATH) and is_once(one.result)
    ]


async def read_typical(engine: Engine, type: str) -> Typical:
    """Read what the newest completed runs of a type had in common."""
    runs = await engine.find(Where(states=(State.COMPLETED,), type=type, newest_first=True), limit=RECENT)
    if not runs:
        return Typical()
    counts: Counter[str] = Counter()
    times: dict[str, list[int]] = {}
    whole = 0
    for run, summary in zip(runs, await engine.summaries([run.id for run in runs]), strict=True):
        counts.update({name: one.done for name, one in summary.names.items()})
        heads = await engine.steps_page(run.id)
        for head in heads:
            if "/" not in head.path and head.finished_at is not None:
                times.setdefault(head.name, []).append(head.finished_at - head.started_at)
        began = max(run.created_at, min((head.started_at for head in heads), default=run.created_at))
        whole += max(0, (run.finished_at or began) - began - in_review_ms(await history_of(engine, run.id)))
    costs: dict[str, Amounts] = {}
    for prefix in (SPENT_PATH, SAVED_PATH):  # what a copied step has cost was paid by another run
        for record in await engine.steps_under_each([run.id for run in runs], prefix):
            name = _name_in(record.path.removeprefix(prefix))
            costs[name] = added(costs.get(name, {}), amounts_in(record))
    return Typical(
        runs=len(runs),
        newest=runs[0].id,
        ms=whole // len(runs),
        counts={name: number / len(runs) for name, number in counts.items()},
        ms_each={name: sum(all) / len(all) for name, all in times.items()},
        spent_each={
            name: {currency: amount // counts[name] for currency, amount in all.items()}
            for name, all in costs.items()
            if counts[name]
        },
    )


def in_review_ms(history: Sequence[Entry]) -> int:
    """How long a job has waited for a person's decision."""
    waited, since = 0, None
    for entry in history:
        if entry.after is State.REVIEW:
            since = entry.at if since is None else since
        elif since is not None:
            waited, since = waited + entry.at - since, None
    return waited


async def _children_in_review(engine: Engine, job: Job, records: Sequence[Step]) -> tuple[str, ...]:
    """The children that a replay would replay, too."""
    found: list[str] = []
    failed = recorded_failures(records).children
    for start in range(0, len(failed), PAGE_LIMIT):
        children = await engine.get(failed[start : start + PAGE_LIMIT])
        found += [one.id for one in children if one is not None and (one.parent, one.state) == (job.id, State.REVIEW)]
    return tuple(found)
