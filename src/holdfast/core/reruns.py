"""Running recorded steps again: which records are set aside, under which paths, and what a new generation means.

Must not touch a store. A step that is rejected keeps nothing under its own path. Beside it stand its generation, which
is part of its idempotency key, and what the person said; what it had recorded before is set aside.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.model import Job, Step, StepState, Time
from holdfast.core.outcome import ARGS_PATH, FAILED_ONCE_PATH
from holdfast.core.spending import SPENT_PATH
from holdfast.core.summaries import is_step
from holdfast.core.unreadable import record_content

AGAIN_PATH = "~again/"
"""The path, beside a step's record, of its generation. `~again/` alone has the reruns of the job: see `Reruns`."""

ASIDE_PATH = "~aside/"
"""The path, followed by the number of the rerun, of what a step had recorded before."""

ORIGIN_PATH = "~origin"
"""The record of a run that was made from another one: which one, and why."""

SAVED_PATH = "~saved/"
"""The path, beside a copied step, of what the step had cost the run that it was copied from."""

CODE_PATH = "~code/"
"""The path, followed by an epoch, of the fingerprints of the steps that were recorded under that lease, by name."""

BESIDE = (ARGS_PATH, SPENT_PATH, SAVED_PATH, FAILED_ONCE_PATH, "~limit/")
"""The paths of what is kept beside a step and has no meaning without it."""

_VARIANT = re.compile(r"(?<=[^#])\*[0-9]+$")


def outdated(paths: Collection[str]) -> set[str]:
    """Those of these recorded paths for which a later rerun has a record, because their arguments changed again."""
    later: dict[str, tuple[str, int]] = {}
    newest: dict[str, int] = {}
    for path in paths:
        if "*" in path and (found := _VARIANT.search(path)):
            base, number = path[: found.start()], int(found[0][1:])
            later[path] = base, number
            newest[base] = max(number, newest.get(base, 0))
    if not newest:
        return set()
    return {path for path in paths if (later[path][1] < newest[later[path][0]] if path in later else path in newest)}


class Again(Struct, frozen=True, omit_defaults=True):
    """Why a step runs again: its generation, and what a person said about the result that was set aside.

    `whole` if everything inside it runs again, too; otherwise only because something inside it does.
    """

    number: int
    whole: bool = False
    feedback: str = ""
    rejected: str = "null"
    """The result that was set aside, as JSON text."""
    args: str | None = None
    """The arguments that the step gets instead of those of its call, as JSON text."""


class Reruns(Struct, frozen=True, omit_defaults=True):
    """The reruns of a job: how many there were, and which effects may happen again with other arguments in the last."""

    number: int = 0
    allow: tuple[str, ...] = ()
    """Their paths."""


class Origin(Struct, frozen=True, omit_defaults=True):
    """What a run was made from: the runs that its steps come from, the newest first, and how."""

    jobs: tuple[str, ...]
    how: str
    """"rerun" or "fork"."""
    at: str = ""
    """The steps that run again, or the step before which a fork was made."""
    by: str = ""
    reason: str = ""


def origin_of(records: Iterable[Step]) -> Origin | None:
    """What a run was made from; None for a run that was submitted."""
    found = next((record for record in records if record.path == ORIGIN_PATH), None)
    return None if found is None else msgspec.json.decode(found.result or "{}", type=Origin)


def variant_of(path: str, rerun: int) -> str:
    """The path of a call with `key=` whose arguments changed in this rerun. No quoted key contains a star."""
    return f"{path}*{rerun}"


def without_variant(path: str) -> str:
    """The path of the call itself."""
    return _VARIANT.sub("", path)


def again_in(records: Iterable[Step]) -> dict[str, Again]:
    """What was said about the steps that run again, by path, given all records of a job."""
    return {one.path.removeprefix(AGAIN_PATH): read_again(one) for one in records if is_again(one.path)}


def is_again(path: str) -> bool:
    """Whether a record is the generation of a step."""
    return path.startswith(AGAIN_PATH) and path != AGAIN_PATH


def read_again(record: Step) -> Again:
    """Read the generation of a step."""
    return msgspec.json.decode(record.result or "{}", type=Again)


def again_above(path: str, again: Mapping[str, Again]) -> list[tuple[str, Again]]:
    """What was said about a step and about the steps around it that run again as a whole, outermost first."""
    parts = path.split("/")
    above = ["/".join(parts[:end]) for end in range(1, len(parts))]
    known = [(one, again[one]) for one in (*above, path) if one in again]
    return [(one, said) for one, said in known if said.whole or one == path]


def generation_of(path: str, again: Mapping[str, Again]) -> str:
    """The generation of a step: "" until a person rejects it or a step around or inside it."""
    return ",".join(f"{one}:{said.number}" for one, said in again_above(path, again)) if again else ""


def encloses(outer: str, path: str) -> bool:
    """Whether a step is this one or inside it."""
    return f"{path}/".startswith(f"{outer}/")


class SetAside(Struct, frozen=True):
    """What a rerun changes: records to drop, and records to write."""

    drops: tuple[str, ...]
    steps: tuple[Step, ...]
    paths: tuple[str, ...]
    """The steps whose records were set aside."""
    spent: tuple[Step, ...]
    """What they had cost."""


def set_aside(
    job: Job,
    records: Sequence[Step],
    wanted: Iterable[str],
    now: Time,
    *,
    feedback: str = "",
    args: str | None = None,
    allow: Iterable[str] = (),
) -> SetAside:
    """Set aside the records of these steps, of everything inside them, and of the steps around them.

    The steps around them have results that were made from theirs. `allow` has the paths of the effects that may happen
    again if their arguments change.
    """
    wanted = [without_variant(path) for path in wanted]
    by_path = {record.path: record for record in records}
    rerun = reruns_of(records).number + 1
    gone: list[Step] = []
    for record in records:
        base = "/".join(without_variant(part) for part in record.path.split("/"))
        if is_step(record.path) and any(encloses(path, base) or encloses(base, path) for path in wanted):
            gone.append(record)
    text = msgspec.json.encode(Reruns(rerun, allowed)).decode() if (allowed := tuple(allow)) else str(rerun)
    steps = [own_record(job, AGAIN_PATH, now, text)]
    for record in gone:
        whole = any(encloses(path, record.path) for path in wanted)
        is_named = without_variant(record.path) in wanted
        before = by_path.get(AGAIN_PATH + record.path)
        number = 1 if before is None else int(record_content(before.result).get("number", 1))
        again = Again(
            number=number + 1,
            whole=whole,
            feedback=feedback if is_named else "",
            rejected=(record.result or "null") if whole and record.state is StepState.DONE else "null",
            args=args if is_named else None,
        )
        steps.append(own_record(job, AGAIN_PATH + record.path, now, msgspec.json.encode(again).decode()))
        aside = f"{ASIDE_PATH}{rerun}/{record.path}"
        steps.append(replace(record, path=aside, name=ASIDE_PATH[:-1]))
        intent = by_path.get(f"~undo/{record.path}")
        if intent is not None:
            info = {"first": record.path, **record_content(intent.result)}
            text = msgspec.json.encode(info).decode()
            steps.append(replace(intent, path=f"~undo/{aside}", result=text))
    paths = [record.path for record in gone]
    prefixes = ("", AGAIN_PATH, "~undo/", *BESIDE)
    drops = [prefix + path for path in paths for prefix in prefixes if prefix + path in by_path]
    drops += [AGAIN_PATH] if AGAIN_PATH in by_path else []
    spent = [by_path[SPENT_PATH + path] for path in paths if SPENT_PATH + path in by_path]
    return SetAside(tuple(drops), tuple(steps), tuple(paths), tuple(spent))


def code_of(records: Sequence[Step]) -> dict[str, str]:
    """The fingerprint of the code that made each recorded step, by path. Steps of older versions have none."""
    known = {one.path.removeprefix(CODE_PATH): record_content(one.result) for one in records if is_code(one.path)}
    found = {one.path: known.get(str(one.epoch), {}).get(one.name) for one in records if is_step(one.path)}
    return {path: code for path, code in found.items() if isinstance(code, str)}


def is_code(path: str) -> bool:
    """Whether a record has fingerprints."""
    return path.startswith(CODE_PATH)


def made_by_other_code(records: Sequence[Step], known: Mapping[str, Collection[str]]) -> list[str]:
    """The paths of the steps that were made by other code than this, given the fingerprints of each name now."""
    names = {record.path: record.name for record in records}
    return [path for path, code in code_of(records).items() if code not in known.get(names[path], (code,))]


def reruns_of(records: Iterable[Step]) -> Reruns:
    """How often steps of a job were set aside so far, and what the last rerun allows."""
    return next((read_reruns(record) for record in records if record.path == AGAIN_PATH), Reruns())


def read_reruns(record: Step) -> Reruns:
    """Read the record of a job's reruns: their number alone, if the last one allows nothing."""
    found = msgspec.json.decode(record.result or "0", type=int | Reruns)
    return found if isinstance(found, Reruns) else Reruns(found)


def own_record(job: Job, path: str, now: Time, text: str) -> Step:
    """One of Holdfast's own records, which stays as it is."""
    return Step(
        job=job.id,
        epoch=job.epoch,
        path=path,
        name=path.partition("/")[0],
        state=StepState.DONE,
        result=text,
        started_at=now,
        finished_at=now,
    )
