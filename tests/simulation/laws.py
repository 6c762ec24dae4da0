"""The laws of what the store holds: jobs, histories, leases, records, attempts, times, children, signals."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.core.keys import derived_id
from holdfast.core.model import Applied, Entry, StepState
from holdfast.jobs.schedules import META_TICK
from tests.core.second_copy import EDGES
from tests.simulation.callers import OK, REFUSED
from tests.simulation.check import TERMINAL, UNDO, Run, law
from tests.simulation.lives import OWNER, Life
from tests.simulation.shapes import HEARD

COUNTED = frozenset({"fail", "exhaust", "overrun"})
RECOVERY_LIMIT = 3
RELEASE_LIMIT = 10
RECOVERY_MS = 10_000
JITTER_LOW = 0.5


@law
def accepted_jobs_are_there(run: Run) -> Iterator[str]:
    for said in run.said:
        if said.kind == "submit" and said.outcome == OK and said.job not in run.lives:
            yield f"S1: job {said.job} was accepted and isn't there"
        if said.kind == "submit" and said.outcome == REFUSED and said.drawn & run.lives.keys():
            yield f"S1: a job was refused with {said.heard!r} and is there"


@law
def no_job_is_invented(run: Run) -> Iterator[str]:
    for id, life in run.lives.items():
        if id in run.stage.drawn or META_TICK in life.job.options.meta:
            continue
        parent = run.lives.get(life.job.parent or "")
        if parent is None or parent.job.epoch == 0:
            yield f"S2: nobody asked for {life.name}"


@law
def one_key_is_one_job(run: Run) -> Iterator[str]:
    for type, key in dict.fromkeys(said.key for said in run.said if said.key is not None):
        asked = [one for one in run.said if one.key == (type, key)]
        ids = {one.job for one in asked if one.outcome == OK}
        there = [life for life in run.lives.values() if (life.job.type, life.job.key) == (type, key)]
        if len(ids) > 1 or len(there) > 1:
            yield f"S12: key {key} of {type} stands for {len(ids)} accepted and {len(there)} stored jobs"
        args = {one.given.args for one in asked if one.outcome == OK}
        if len(args) > 1:
            yield f"S12: key {key} of {type} was accepted with {args}"


@law
def every_change_is_in_the_table(run: Run) -> Iterator[str]:
    for life in run.lives.values():
        state: Any = None
        for entry in life.entries:
            if entry.before != state:
                yield f"S3: {life.name}: version {entry.version}, {entry.event}, begins at {entry.before}, not {state}"
            if state in TERMINAL:
                yield f"S4: {life.name}: {entry.event} after {state}"
            if entry.event == "signal":
                fits = entry.after == state
            elif entry.event == "submit":
                fits = entry.version == 1 and entry.after in ("available", "scheduled", "pending")
            else:
                fits = entry.after in EDGES.get((entry.event, str(state)), "").split()
            if not fits:
                yield f"S3: {life.name}: {entry.event} led from {state} to {entry.after}"
            by_claim = entry.event in ("promote", "activate") and entry.by in ("time", "limit")
            if entry.version not in life.made and not by_claim:
                yield f"S3: {life.name}: nobody made version {entry.version}, {entry.event} by {entry.by}"
            state = entry.after
        if life.job.state != state:
            yield f"S3: {life.name} is {life.job.state}, its history ends at {state}"
        if (life.job.state == "active") != (life.job.worker is not None):
            yield f"S8: {life.name} is {life.job.state}, owned by {life.job.worker}"


@law
def epochs_grow_by_claims_alone(run: Run) -> Iterator[str]:
    for life in run.lives.values():
        epoch = 0
        for entry in life.entries:
            epoch += entry.event == "claim"
            if entry.epoch != epoch:
                yield f"S5: {life.name}: {entry.event} at epoch {entry.epoch}, after {epoch} claims"
                break
    given = Counter((job.id, job.epoch) for act in run.acts if act.name == "claim" and act.ok for job in act.answer)
    for (id, epoch), times in given.items():
        if times > 1:
            yield f"S6: epoch {epoch} of job {id[-6:]} was given to {times} claims"


@law
def only_the_owner_writes(run: Run) -> Iterator[str]:
    """Every write that was accepted in an owner's name was its own, and refused ones were not."""
    for life in run.lives.values():
        owner: Entry | None = None
        for entry in life.entries:
            if entry.event == "claim":
                owner = entry
            elif entry.event in OWNER and (owner is None or (entry.by, entry.epoch) != (owner.by, owner.epoch)):
                yield f"S7: {life.name}: {entry.event} by {entry.by} at {entry.epoch}, owned by {owner and owner.by}"
        for kept in life.kept:
            if not kept.owned:
                continue
            tenure = life.tenures.get(kept.step.epoch)
            ends_with = tenure is not None and tenure.end is kept.act
            if tenure is None or not (tenure.covers(kept.act) or ends_with):
                yield f"S7: {life.name}: a record of {kept.step.path} was accepted at epoch {kept.step.epoch}, too late"
        for kept in life.refused:
            tenure = life.tenures.get(kept.step.epoch)
            if tenure is not None and tenure.covers(kept.act):
                yield f"S7: {life.name}: its owner's record of {kept.step.path} was refused"
    for act in run.acts:
        if act.name == "insert" and act.ok and act.args[1:] and act.args[1] is not None:
            lease = act.args[1]
            tenure = run.lives[lease.job].tenures.get(lease.epoch)
            if tenure is None or not tenure.covers(act):
                yield f"S7: children of {lease.job[-6:]} were accepted at epoch {lease.epoch}, too late"


@law
def records_are_written_once(run: Run) -> Iterator[str]:
    for life in run.lives.values():
        first: dict[str, Any] = {}
        for kept in life.kept:
            path, step = kept.step.path, kept.step
            if step.state is StepState.DONE and not path.startswith("~"):
                if kept.first and path in first and first[path] != step:
                    yield f"S9: {life.name}: {path} was recorded twice"
                if kept.first:
                    first.setdefault(path, step)
        for path, step in first.items():
            if life.steps.get(path) != step:
                yield f"S9: {life.name}: {path} was recorded and isn't there"


@law
def attempts_and_recoveries_are_counted(run: Run) -> Iterator[str]:
    for life in run.lives.values():
        attempt, recoveries, lapsed = 1, 0, 0
        retries = life.job.options.retry.retries
        for entry in life.entries:
            event = entry.event
            if event == "fail" and attempt > retries:
                yield f"S16: {life.name}: attempt {attempt} failed, of {retries + 1}, and another is made"
            if event == "exhaust" and attempt <= retries and not {"in_doubt", "released"} & entry.note.keys():
                yield f"S16: {life.name}: exhausted at attempt {attempt} of {retries + 1}"
            attempt += event in COUNTED
            if event in ("lapse", "abandon") and "lost" in entry.note:
                progressed = _progressed(run, life, entry, lapsed)
                too_many = (recoveries >= RECOVERY_LIMIT and not progressed) or "in_doubt" in entry.note
                if too_many != (event == "abandon"):
                    yield f"S16: {life.name}: {event} after {recoveries} lost workers, progressed: {progressed}"
                if event == "lapse":
                    recoveries = 1 if progressed else recoveries + 1
                    lapsed = entry.epoch
            if event == "replay":
                attempt, recoveries = 1, 0
        if (life.job.attempt, life.job.recoveries) != (attempt, recoveries):
            there = f"{life.job.attempt} and {life.job.recoveries}"
            yield f"S16: {life.name}: attempt and recoveries are {there}, not {attempt} and {recoveries}"


@law
def the_tenth_release_in_a_row_needs_a_person(run: Run) -> Iterator[str]:
    """A deploy costs nothing, but a job that is released again and again and records nothing new is not well."""
    for life in run.lives.values():
        row = 0
        for entry in life.entries:
            if entry.event in ("fail", "overrun", "lapse", "replay"):
                row = 0
            given_up = "released" in entry.note
            if (entry.event == "release" and "steps" in entry.note) or given_up:
                recorded = _epochs(life, life.made[entry.version].number)
                row = 0 if entry.epoch in recorded else row + 1
                if (row >= RELEASE_LIMIT) != given_up:
                    yield f"S16r: {life.name}: {entry.event} when it was released {row} times in a row"


@law
def what_runs_in_a_loop_that_ends_is_lost(run: Run) -> Iterator[str]:
    """A job that ends its worker's loop is no deploy: what ran there counts as lost, and is not handed over."""
    ended = {node.worker.id: node.unlooped for node in run.cast.nodes if node.unlooped is not None}
    for life in run.lives.values():
        for tenure in life.tenures.values():
            at, end = ended.get(tenure.worker), tenure.end
            if at is None or end is None or end.at < at or tenure.event != "release":
                continue
            if "steps" in life.note_of(tenure):
                yield f"S16c: {life.name} was handed over by {tenure.worker}, whose loop had ended"


def _epochs(life: Life, before: int) -> set[int]:
    """The epochs in which steps were recorded, or waits begun or answered, before an act."""
    kept = [one.step for one in life.kept if one.act.number < before]
    return {step.epoch for step in kept if not step.path.startswith("~") or step.path.startswith(("~wait/", "~child/"))}


@law
def trouble_with_the_store_is_no_failure(run: Run) -> Iterator[str]:
    """A store that doesn't answer is asked again: it costs a job no try, and no item of a map."""
    for life in run.lives.values():
        for entry in life.entries:
            error = str(entry.note.get("error", ""))
            if entry.event in ("fail", "exhaust") and "StoreError" in error:
                yield f"S16: {life.name}: {entry.event} because the store didn't answer: {error}"


def _progressed(run: Run, life: Life, entry: Entry, lapsed: int) -> bool:
    """Whether the rescuer saw a step that was recorded since the last lapse: as it stood when it looked."""
    act = life.made[entry.version]
    looks = [
        seen for who, job, seen in run.stage.store.looks if (who, job) == (act.who, life.job.id) and seen <= act.number
    ]
    seen = looks[-1] if looks else act.number
    counted = [kept.step.path for kept in life.kept if kept.act.number < seen]
    paths = {path for path in counted if not path.startswith("~") or path.startswith(("~wait/", "~child/"))}
    at = run.acts[seen] if seen < len(run.acts) else act
    standing = [life.standing(path, at) or _started(life, path, seen) for path in paths]
    return any(step is not None and step.epoch > lapsed for step in standing)


def _started(life: Life, path: str, seen: int) -> Any:
    records = [kept.step for kept in life.records_of(path) if kept.act.number < seen]
    return records[-1] if records and records[-1].state is StepState.STARTED else None


@law
def nothing_is_claimed_early_or_too_late(run: Run) -> Iterator[str]:
    for life in run.lives.values():
        earliest, attempt, recoveries = 0, 1, 0
        for entry in life.entries:
            event, retry = entry.event, life.job.options.retry
            if event == "submit":
                earliest = _asked(life).run_at or 0
            if event in ("fail", "overrun"):
                delay = min(retry.initial_ms * retry.factor ** (attempt - 1), retry.cap_ms)
                if retry.strategy == "constant":
                    delay = retry.initial_ms
                earliest = entry.at + int(delay * (JITTER_LOW if retry.jitter else 1))
            if event == "rest":
                earliest = _change(life, entry).job.run_at
            if event == "lapse":
                recoveries = 1 if _change(life, entry).job.recoveries == 1 else recoveries + 1
                if recoveries > 1:
                    earliest = entry.at + RECOVERY_MS * 2 ** (recoveries - 2)
            if event in ("activate", "replay"):
                earliest = entry.at
            attempt = 1 if event == "replay" else attempt + (event in COUNTED)
            recoveries = 0 if event == "replay" else recoveries
            act = life.made.get(entry.version)
            at = entry.at if act is None else act.store_at
            if event in ("promote", "claim") and at < earliest:
                yield f"S17: {life.name}: {event} came {earliest - at} ms early"
            if event == "claim" and life.job.expires_at is not None and at >= life.job.expires_at:
                yield f"S17: {life.name}: claimed {at - life.job.expires_at} ms after it had expired"
            if event == "expire" and (life.job.expires_at is None or entry.at < life.job.expires_at):
                yield f"S17: {life.name}: expired too early"


def _asked(life: Life) -> Any:
    act = life.made[1]
    if act.name in ("insert", "put_record"):
        return next(job for job in act.args[0 if act.name == "insert" else 3] if job.id == life.job.id)
    return next(job for change in act.args[0] for job in change.inserts if job.id == life.job.id)


def _change(life: Life, entry: Entry) -> Any:
    act = life.made[entry.version]
    return next(
        change
        for change, answer in zip(act.args[0], act.answer, strict=True)
        if change.job.id == life.job.id and isinstance(answer, Applied)
    )


@law
def children_are_submitted_once_and_arrive_once(run: Run) -> Iterator[str]:
    children: defaultdict[tuple[str, str], list[Life]] = defaultdict(list)
    for life in run.lives.values():
        if life.job.parent is not None:
            children[life.job.parent, life.job.group or ""].append(life)
    for (parent, group), found in children.items():
        out = [life for life in found if not life.job.arrived]
        if run.last.missing[f"{parent}/{group}"] != len(out):
            yield f"S23: {len(out)} of {len(found)} children are out, the store says {run.last.missing}"
        for life in found:
            if (life.job.state in TERMINAL) and not life.job.arrived:
                yield f"S23: {life.name} has ended and its parent doesn't know"
            if life.job.type == UNDO and life.job.id != derived_id(parent, "undo"):
                yield f"S23: an undo with another id, {life.name}"
    for id, life in run.lives.items():
        if life.job.type == "family":
            mine = [one for one in run.lives.values() if one.job.parent == id and one.job.type != UNDO]
            n = msgspec.json.decode(life.job.args)[0]
            completed = life.job.state == "completed" and life.entries[-1].event == "complete"
            if len(mine) > n + 1 or (completed and len(mine) != n + 1):
                yield f"S23: {life.name} has {len(mine)} children, of {n + 1}"
            if completed and {one.job.id for one in mine} != set(msgspec.json.decode(life.job.result or "[]")):
                yield f"S23: {life.name} tells of other children than it has"


@law
def signals_are_kept_and_taken_once(run: Run) -> Iterator[str]:
    for id, life in run.lives.items():
        inbox = [msgspec.json.decode(signal.value) for signal in life.job.inbox if signal.name == "go"]
        answered = [step for path, step in life.steps.items() if path.startswith("~wait/") and step.state == "done"]
        infos = [msgspec.json.decode(step.result or "{}") for step in answered]
        turns = sorted((info["signal"], info.get("turn", 1), int(info["value"])) for info in infos if "value" in info)
        if len({turn[:2] for turn in turns}) < len(turns):
            yield f"signals: nobody can tell which wait of {life.name} has one"
        taken = list({signal: value for signal, _, value in turns}.values())
        sent = [said for said in run.said if said.kind == "signal" and said.job == id]
        for said in sent:
            times = inbox.count(said.given)
            if said.outcome == OK and not times and said.given not in taken:
                yield f"signals: {said.given} was accepted by {life.name} and is lost"
            if times > 1 or taken.count(said.given) > 1:
                yield f"signals: {said.given} came to {life.name} more than once"
            if said.outcome == REFUSED and (times or said.given in taken):
                yield f"signals: {said.given} was refused by {life.name} and is there"
        if {*inbox, *taken} - {said.given for said in sent}:
            yield f"signals: {life.name} has some that nobody sent"
        if (
            life.job.state == "pending"
            and any(wait.name == "go" for wait in life.job.waits)
            and set(inbox) - set(taken)
        ):
            yield f"signals: {life.name} waits for one that is there"


def _number(path: str) -> int:
    """Which of the equal waits this is."""
    return int(path.partition("#")[2] or 1)


@law
def what_a_wait_has_taken_its_code_has_got(run: Run) -> Iterator[str]:
    """Under timers of its own, too. A timer begins anew with the code: so this is about jobs that ran only once."""
    for id, life in run.lives.items():
        if life.job.type != "hurry" or life.job.state != "completed" or life.job.epoch != 1:
            continue
        places: dict[int, int] = {}
        for path, step in life.steps.items():
            info = msgspec.json.decode(step.result or "{}") if "~wait/" in path else {}
            if "value" in info:
                places[int(info["value"])] = max(_number(path), places.get(int(info["value"]), 0))
        told = [one.given[1] for one in run.effects if one.job == id and str(one.given[1]).startswith(HEARD)]
        heard = [int(word) for word in "".join(told[-1:]).removeprefix(HEARD).split(",") if word]
        # The last wait may have been given up with a signal in hand that nobody asked for again.
        last = max((places.get(value, 0) for value in heard), default=0)
        missed = [value for value, place in places.items() if value not in heard and place < last]
        if told and (missed or set(heard) - places.keys()):
            yield f"signals: {life.name} has taken others than its code has got, {heard}"
        if len(set(heard)) < len(heard):
            yield f"signals: {life.name} got one twice: {heard}"


@law
def answers_are_true(run: Run) -> Iterator[str]:
    """What callers heard fits what the store holds: cancels, results, and versions that never go back."""
    versions: dict[tuple[str, str], tuple[float, int]] = {}
    for said in run.said:
        life = run.lives.get(said.job)
        if life is None:
            continue
        if said.kind == "cancel" and said.outcome == OK and life.job.state != "cancelled":
            yield f"S24: the cancel of {life.name} was accepted, and it is {life.job.state}"
        if said.kind == "cancel" and said.outcome == REFUSED and life.job.state not in TERMINAL:
            yield f"S24: the cancel of {life.name} was refused, and it is {life.job.state}"
        told = said.kind == "result" and said.outcome == OK and isinstance(said.heard, list)
        if told and (life.job.state != "completed" or msgspec.json.decode(life.job.result or "") != said.heard):
            yield f"S30: {life.name} gave {said.heard}, and holds {life.job.result}"
        if said.kind == "look" and said.outcome == OK and said.until is not None:
            until, version = versions.get((said.who, said.job), (0.0, 0))
            if said.at >= until and said.heard.version < version:
                yield f"S30: {said.who} saw {life.name} go back from {version} to {said.heard.version}"
            versions[said.who, said.job] = (said.until, said.heard.version)


@law
def paused_queues_hand_out_nothing(run: Run) -> Iterator[str]:
    for queue, since, until in run.callers.pauses:
        for act in run.acts:
            if act.name == "claim" and act.ok and since <= act.at < until:
                for job in act.answer:
                    if job.queue == queue:
                        yield f"pause: {job.type} {job.id[-6:]} came out of queue {queue}, which was paused"
