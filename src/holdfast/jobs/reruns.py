"""Running recorded steps again, and runs made from other runs: rerun and fork.

Must not decide which records a rerun sets aside (`core.reruns`). Nothing leaves a terminal state: of a job that has
ended, a new run is made, which begins with what it keeps of the old one's records.
"""

import shlex
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from holdfast.core.changes import activate, replay
from holdfast.core.errors import HoldfastError, Invalid, NotAllowed, NotFound
from holdfast.core.keys import digest
from holdfast.core.lifecycle import TERMINAL, standing
from holdfast.core.limits import REASON_CHARACTERS
from holdfast.core.model import COPYING, Applied, Change, Job, State, Step, StepState, Time, Wait, WaitKind, Where
from holdfast.core.outcome import ARGS_PATH
from holdfast.core.places import PLACES_PATH, paths_down, places_in, still_used
from holdfast.core.reruns import (
    AGAIN_PATH,
    ASIDE_PATH,
    CODE_PATH,
    ORIGIN_PATH,
    SAVED_PATH,
    Origin,
    SetAside,
    is_again,
    is_code,
    origin_of,
    own_record,
    read_reruns,
    set_aside,
    without_variant,
)
from holdfast.core.spending import SPENT_PATH, added, amounts_in, charged, lessened, spending_in
from holdfast.core.suggestions import suggest
from holdfast.core.summaries import is_step
from holdfast.core.unreadable import record_content, without_unreadable
from holdfast.jobs.consequences import ATTACHED_RESULT, CHILD_PATH, UNDO_PATH
from holdfast.jobs.large_values import keep_copy
from holdfast.jobs.questions import WAIT_PATH
from holdfast.jobs.remote import RemoteJobs
from holdfast.jobs.replay_plans import effect_paths
from holdfast.jobs.replays import said_of
from holdfast.jobs.requests import edited_args
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import SPENDING_PATH
from holdfast.jobs.views.step_names import call_order, has_hash, name_steps
from holdfast.jobs.views.text import name_some, plural

FEEDBACK_CHARACTERS = 10_000
"""How long the feedback for a step may be."""

SLEEP_PATH = f"{WAIT_PATH}sleep:"

_ANSWERS = (WAIT_PATH, CHILD_PATH)


async def rerun(
    jobs: Jobs,
    id: str,
    steps: Sequence[str],
    *,
    args: str | None = None,
    feedback: str = "",
    allow: Collection[str] = (),
    by: str = "person",
    reason: str = "",
) -> Job:
    """Run recorded steps of a job again, and whatever receives a changed value. Everything else is kept.

    A job in review is replayed. Of a job that has ended a new run is made. `args` are the arguments that the step gets
    instead of its call's, as JSON text; `feedback` is what `current().feedback` returns in it. `allow` names the
    effects that may happen again.
    """
    _check_words(steps, args, feedback, reason, allow)
    args = None if args is None else edited_args(args)
    if isinstance(jobs, RemoteJobs):
        return await jobs.rerun(id, steps, args=args, feedback=feedback, allow=allow, reason=reason)
    job = await jobs.get(id)
    records = await jobs.engine.steps(id)
    wanted = await _wanted(jobs, job, records, steps)
    if job.state in TERMINAL:
        undone = _undone(job, records)
        now = await jobs.engine.now()
        allowed = _find_effects(job, records, allow)
        aside = set_aside(job, records, wanted, now, feedback=feedback, args=args, allow=allowed)
        _check_effects(job, records, {*aside.paths, *undone}, allowed, f"running {name_some(wanted)} again")
        gone = {*aside.drops, *undone}
        kept = [record for record in records if record.path not in gone]
        origin = Origin(jobs=(id,), how="rerun", at=", ".join(wanted), by=by, reason=reason or feedback)
        return await _copy(jobs, job, kept, aside.steps, origin, job.args, at=_named(job, records, wanted))

    async def again(job: Job, now: Time) -> Change:
        if job.state is not State.REVIEW:
            raise NotAllowed(
                f"job {id} is {standing(job.state)}, so its steps can't run again now; wait until it has ended or "
                "needs a person, or cancel it first"
            )
        records = await jobs.engine.steps(id)
        allowed = _find_effects(job, records, allow)
        aside = set_aside(job, records, wanted, now, feedback=feedback, args=args, allow=allowed)
        _check_effects(job, records, aside.paths, allowed, f"running {name_some(wanted)} again")
        note = {"again": _named(job, records, wanted), "set_aside": len(aside.paths)}
        note |= {name: text for name, text in (("feedback", feedback), ("reason", reason)) if text}
        change = await jobs.complete_replay(replay(job, now, by=by, note=note), said_of(job), reason or feedback)
        wasted = _wasted(job, records, aside, now)
        drops = dict.fromkeys([*change.drops, *aside.drops])
        return without_unreadable(
            job, replace(change, drops=tuple(drops), steps=(*change.steps, *aside.steps, *wasted))
        )

    return await jobs.change(id, again)


async def fork(
    jobs: Jobs,
    id: str,
    until: str | None = None,
    *,
    args: str | None = None,
    allow: Collection[str] = (),
    by: str = "person",
    reason: str = "",
) -> Job:
    """Make a new run that begins with what another one recorded before its first step `until`; all of it without.

    `args` are the new run's arguments, as JSON text. `allow` names the effects that happened later in the other run and
    may happen again in this one.
    """
    _check_words(["fork" if until is None else until], args, "", reason, allow)
    args = None if args is None else edited_args(args)
    if isinstance(jobs, RemoteJobs):
        return await jobs.fork(id, until, args=args, allow=allow, reason=reason)
    job = await jobs.get(id)
    records = await jobs.engine.steps(id)
    undone = _undone(job, records)
    kept = [one for one in (records if until is None else _prefix(job, records, until)) if one.path not in undone]
    paths = {record.path for record in kept}
    left = [record.path for record in records if is_step(record.path) and record.path not in paths]
    allowed = _find_effects(job, records, allow)
    _check_effects(job, records, left, allowed, f"a fork{'' if until is None else f' before {until}'}")
    origin = Origin(jobs=(id,), how="fork", at=until or "", by=by, reason=reason)
    args = job.args if args is None else args
    return await _copy(jobs, job, kept, (), origin, args, at=_named(job, records, () if until is None else [until]))


def find_steps(job: Job, records: Sequence[Step], asked: Sequence[str]) -> list[str]:
    """Return the paths of the steps that a person names: by path, by name as `holdfast show` has it, or "draw#3" for
    the third draw that the code called. Raises NotFound.
    """
    steps = [record for record in records if is_step(record.path)]
    paths = {step.path for step in steps}
    places = places_in(records)
    shown = {name: path for path, name in name_steps(job, steps, places).items()}
    by_path = {step.path: step for step in steps}
    ordered = call_order([step.path for step in steps], places)
    used = set(still_used(ordered, records))
    names = {by_path[path].name for path in used}  # what a rerun has left unused counts only where nothing else is
    steps = [by_path[path] for path in ordered if path in used or by_path[path].name not in names]
    return list(dict.fromkeys(_find_step(job, steps, paths, shown, text) for text in asked))


async def _wanted(jobs: Jobs, job: Job, records: Sequence[Step], asked: Sequence[str]) -> list[str]:
    """Find the steps that a person names. If they name a child job instead, say so."""
    try:
        return find_steps(job, records, asked)
    except NotFound:
        for text in asked:
            name, _, number = text.partition("#")
            children = await jobs.engine.find(Where(parent=job.id, type=name))
            if children:
                place = int(number) - 1 if number.isdecimal() and 0 < int(number) <= len(children) else 0
                raise NotFound(
                    f"job {job.id} has no recorded step {text!r}: {name} is a job of its own; rerun a step of that "
                    f"job, {children[place].id}"
                ) from None
        raise


def _named(job: Job, records: Sequence[Step], paths: Sequence[str]) -> list[str]:
    """Return the paths of steps for the history, and names instead of those that have a hash."""
    steps = {record.path: record for record in records if is_step(record.path)}
    known = [path for path in paths if path in steps and has_hash(path)]
    names = name_steps(job, list(steps.values()), places_in(records), known)
    return [names.get(path, path) for path in paths]


def _find_step(job: Job, steps: Sequence[Step], paths: Collection[str], shown: dict[str, str], text: str) -> str:
    if text in paths:
        return text
    if text in shown:
        return shown[text]
    name, _, number = text.partition("#")
    named = [step.path for step in steps if step.name == name]
    if not number and len(named) == 1:
        return named[0]
    if number.isdecimal() and 0 < int(number) <= len(named):
        return named[int(number) - 1]
    if not number and named:
        raise Invalid(
            f"job {job.id} has {plural(len(named), f'step {name}', f'steps {name}')}; choose one, such as {name}#1"
        )
    if named:
        raise NotFound(
            f"job {job.id} has {plural(len(named), f'step {name}', f'steps {name}')}, so there is no {text!r}"
        )
    known = sorted({step.name for step in steps})
    hint = suggest(name, known) or (f"; it has {name_some(known)}" if known else "; it has recorded none")
    raise NotFound(f"job {job.id} has no recorded step {text!r}{hint}")


def _check_words(steps: Sequence[str], args: str | None, feedback: str, reason: str, allow: Collection[str]) -> None:
    for step in steps:
        _check_text(f"step {step!r}", step, '"draw#3"')
    for name, given in (("feedback", feedback), ("reason", reason)):
        _check_text(f"{name}={given!r}", given, f'{name}="too dark"')
    if isinstance(allow, str) or not isinstance(allow, Collection):
        raise Invalid(f'allow={allow!r} is not a list of names; give one, such as allow=["publish"]')
    for effect in allow:
        _check_text(f"allow={allow!r}: {effect!r}", effect, '"publish"')
    if not steps:
        raise Invalid("name the steps to run again")
    if args is not None and len(steps) > 1:
        raise Invalid("args are for one step: name only that one")
    if len(feedback) > FEEDBACK_CHARACTERS or len(reason) > REASON_CHARACTERS:
        raise Invalid(
            f"feedback may have {FEEDBACK_CHARACTERS:,} characters, and a reason {REASON_CHARACTERS:,}; shorten it"
        )


def _check_text(what: str, given: object, example: str) -> None:
    if not isinstance(given, str):
        raise Invalid(f"{what} is not a text; give one, such as {example}")


def _find_effects(job: Job, records: Sequence[Step], allow: Collection[str]) -> list[str]:
    """Return the paths of the effects that a person allows by name or path: recorded ones, or ones that were set aside.
    Raises Invalid.
    """
    once = {*effect_paths(records), *(one.path.removeprefix(AGAIN_PATH) for one in records if is_again(one.path))}
    names = {record.path: record.name for record in records if record.path in once}
    found: dict[str, None] = {}
    for text in allow:
        paths = [path for path in once if text in (path, names.get(path), _name_in(path))]
        if not paths:
            known = sorted({_name_in(path) for path in effect_paths(records)})
            has = f"it has {name_some(known)}" if known else "it has none"
            raise Invalid(f'job {job.id} has no recorded effect (effect="once") {text!r}; {has}')
        found |= dict.fromkeys(map(without_variant, sorted(paths)))
    return list(found)


def _name_in(path: str) -> str:
    return unquote(path.rpartition("/")[2].partition("#")[0])


def _check_effects(job: Job, records: Sequence[Step], gone: Iterable[str], allow: Collection[str], what: str) -> None:
    """Refuse to let an effect happen again that nobody has allowed. `allow` are paths."""
    effects = set(effect_paths(records))
    if refused := [path for path in gone if path in effects and without_variant(path) not in allow]:
        first = shlex.quote(refused[0])
        raise NotAllowed(
            f'job {job.id}: {what} would let {name_some(refused)} happen again, which has effect="once"; if it may, '
            f"allow it by name: --allow {first} (allow=[…])"
        )


def _wasted(job: Job, records: Sequence[Step], aside: SetAside, now: Time) -> list[Step]:
    """The record of what the job has spent, with what the set-aside steps cost as waste."""
    spent = {record.path.removeprefix(SPENT_PATH): amounts_in(record) for record in aside.spent}
    cost = added(*spent.values())
    known = next((record for record in records if record.path == SPENDING_PATH), None)
    if not cost or known is None:
        return []
    spending = spending_in(known)
    now_wasted = replace(
        spending,
        kept=lessened(spending.kept, cost),
        wasted=added(spending.wasted, cost),
        wasted_by=charged(spending.wasted_by, spent.items()),
    )
    return [replace(known, result=msgspec.json.encode(now_wasted).decode(), started_at=now)]


def _prefix(job: Job, records: Sequence[Step], until: str) -> list[Step]:
    """The records that can't depend on the first step of this name or path: called, begun or recorded before it."""
    by_path = {one.path: one for one in records if is_step(one.path)}
    ordered = call_order(list(by_path), places_in(records))
    used = still_used(ordered, records)
    named = [path for path in ordered if until in (by_path[path].name, path)] or find_steps(job, records, [until])
    first = next((path for path in used if path in named), named[0])
    began = min(by_path[path].started_at for path in named)
    index = {one.path: n for n, one in enumerate(records)}
    cut = min(index[path] for path in named)
    before = set(ordered[: ordered.index(first)])
    around = {above for path in named for above in paths_down(path)}
    inside = tuple(f"{path}/" for path in named)
    steps = [one for one in by_path.values() if index[one.path] < cut or one.started_at < began or one.path in before]
    paths = {one.path for one in steps if one.path not in around and not one.path.startswith(inside)}
    kept = {*paths, *(one.path for one in records if not is_step(one.path) and _path_beside(one.path) in paths)}
    kept |= {one.path for one in records if is_code(one.path)} | {ORIGIN_PATH, AGAIN_PATH, PLACES_PATH}
    kept |= {one.path for one in records[: index[first]] if one.path.startswith(_ANSWERS)}
    return [one for one in records if one.path in kept]


def _undone(job: Job, records: Sequence[Step]) -> set[str]:
    """The steps whose results can't be kept because their run was given up, so that what it made is undone: those with
    an undo, and those around them.
    """
    if job.state not in TERMINAL or job.state is State.COMPLETED:
        return set()
    ended = {one.path.rpartition("/")[0] for one in records if one.name == ATTACHED_RESULT}
    made = {one.path.removeprefix(UNDO_PATH) for one in records if one.path.startswith(UNDO_PATH)} - ended
    parts = [path.split("/") for path in made if is_step(path)]
    return {"/".join(part[:end]) for part in parts for end in range(1, len(part) + 1)}


def _path_beside(path: str) -> str:
    """The path of the step that one of our own records stands beside."""
    return path.partition("/")[2]


async def _copy(
    jobs: Jobs, job: Job, kept: Sequence[Step], more: Sequence[Step], origin: Origin, args: str, *, at: Sequence[str]
) -> Job:
    """Make a new run of a job that begins with these records. What they made is never undone by it. `at` names, for the
    history, the steps where it differs.
    """
    now = await jobs.engine.now()
    if (before := origin_of(kept)) is not None:
        origin = replace(origin, jobs=(*origin.jobs, *before.jobs))
    epoch = max(1, job.epoch)  # its first worker reads the records, as after a lost lease
    new = Job(
        id=jobs.new_id(now),
        type=job.type,
        queue=job.queue,
        args=args,
        digest=job.digest if args == job.args else digest(job.type, args),
        priority=job.priority,
        created_at=now,
        options=replace(job.options, unique=None, budget_root=""),
        state=State.PENDING,
        waits=(Wait(WaitKind.ACTIVATION, COPYING),),  # nothing but the act with the records ends this
        epoch=epoch,
    )
    records = [*_copied(kept), *(one for one in more if not one.path.startswith(UNDO_PATH))]
    records.append(own_record(new, ORIGIN_PATH, now, msgspec.json.encode(origin).decode()))
    steps = tuple(replace(record, job=new.id, epoch=min(record.epoch, epoch)) for record in records)
    new = await keep_copy(jobs.engine, new, steps)
    await jobs.engine.insert([new])
    done = sum(is_step(one.path) for one in steps)
    note = {origin.how: job.id, "at": ", ".join(at), "kept": plural(done, "recorded step"), "reason": origin.reason}
    change = activate(new, now, by=origin.by, steps=steps, note={name: text for name, text in note.items() if text})
    try:
        (answer,) = await jobs.engine.commit([change])
    except HoldfastError:
        with suppress(HoldfastError):  # otherwise it would wait for its records for ever
            await jobs.cancel(new.id, by=origin.by, reason="its records could not be copied")
        raise
    if not isinstance(answer, Applied):
        raise NotAllowed(f"job {new.id} was changed while its records were copied: {answer.reason}; cancel it")
    return await jobs.get(new.id)


def _copied(records: Sequence[Step]) -> list[Step]:
    """The records that a copy begins with: what succeeded or is in doubt, and the answers that were received."""
    paths = {one.path for one in records if is_step(one.path) and one.state is not StepState.FAILED}
    found: list[Step] = []
    for one in records:
        path = one.path
        if is_step(path):
            found += [one] if path in paths else []
        elif path == AGAIN_PATH:  # what was allowed then isn't allowed in the copy
            found.append(replace(one, result=str(read_reruns(one).number)))
        elif path.startswith((SPENT_PATH, SAVED_PATH)):
            beside = _path_beside(path)
            found += [replace(one, path=SAVED_PATH + beside, name=SAVED_PATH[:-1])] if beside in paths else []
        elif path.startswith((AGAIN_PATH, ASIDE_PATH, CODE_PATH, PLACES_PATH, SLEEP_PATH)) or (
            path.startswith(ARGS_PATH) and _path_beside(path) in paths
        ):
            found.append(one)
        elif path.startswith(_ANSWERS) and one.state is StepState.DONE:
            info = record_content(one.result)
            found += [one] if "value" in info or "result" in info else []
    return found
