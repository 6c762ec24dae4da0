"""The laws of what really happened outside the store: effects, handlers and the time that things took."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from holdfast.core.model import SIGNAL, StepState
from tests.simulation.callers import OK
from tests.simulation.cast import Node
from tests.simulation.check import SETTLED, UNDO, Run, law
from tests.simulation.lives import Life, Tenure, tokens_in
from tests.simulation.scene import Effect
from tests.simulation.shapes import NAP_SECONDS, STALE_SECONDS

FENCE_PART = 0.8
"""A worker that isn't answered starts no step after this part of its lease, by its own clock."""

LOOK_PART = 0.2
"""For which part of a lease what was seen of the workers may be acted on."""

EPSILON = 1e-6

HALT_SECONDS, LEAVE_SECONDS, STOP_SECONDS = 5.0, 5.0, 5.0
"""How long each part of a worker's stop may take besides the grace."""

SLOW_TO_STOP = frozenset({"deaf"})
"""Shapes whose handlers don't stop when they are told to."""

RESCUED_WHEN_WELL = frozenset({"stale", "deaf", "plodder"})
"""Shapes that are rescued though nothing goes wrong around them."""


def _owned(run: Run) -> Iterator[tuple[Effect, Life, Tenure]]:
    for effect in run.effects:
        life = run.lives.get(effect.job)
        if life is not None and (tenure := life.tenures.get(effect.epoch)) is not None:
            yield effect, life, tenure


@law
def effects_belong_to_leases(run: Run) -> Iterator[str]:
    workers = {node.process.name: node.worker.id for node in run.cast.nodes}
    for effect in run.effects:
        life = run.lives.get(effect.job)
        tenure = None if life is None else life.tenures.get(effect.epoch)
        if tenure is None or tenure.worker != workers[effect.who]:
            yield f"S6: {effect.path} ran for epoch {effect.epoch} in {effect.who}, which never had it"


@law
def what_is_recorded_has_run(run: Run) -> Iterator[str]:
    effects = {effect.token: effect for effect in run.effects}
    for life in run.lives.values():
        for kept in life.kept:
            if kept.step.state is not StepState.DONE or not (kept.first and kept.owned) or life.job.type == UNDO:
                continue
            if kept.step.path.startswith("~"):
                continue
            tokens = tokens_in(msgspec.json.decode(kept.step.result or "null"))
            effect = effects.get(tokens[-1]) if tokens else None
            if effect is None or effect.ended is None or effect.ended > kept.act.at:
                yield f"S9: {life.name}: {kept.step.path} was recorded before it ran"
            elif (effect.job, effect.path) != (life.job.id, kept.step.path):
                yield f"S9: {life.name}: {kept.step.path} has the result of {effect.path}"


@law
def a_step_inside_a_step_keeps_its_place_in_every_try(run: Run) -> Iterator[str]:
    """No shape makes two equal calls inside one step: a number there is the count of an earlier try."""
    for effect in run.effects:
        inside = effect.path.partition("/")[2]
        if inside.count("#") > 1:
            yield f"S9: {effect.path} ran as another call than in the try before it"


@law
def results_are_made_of_records(run: Run) -> Iterator[str]:
    for life in run.lives.values():
        if life.job.state != "completed" or life.entries[-1].event != "complete" or life.job.type in ("family", UNDO):
            continue
        result = tokens_in(msgspec.json.decode(life.job.result or "null"))
        kin = [life, *(one for one in run.lives.values() if one.job.parent == life.job.id)]
        steps = [step for one in kin for step in one.steps.values()]
        done = [step for step in steps if step.state == "done" and not step.path.startswith("~")]
        recorded = [token for step in done for token in tokens_in(msgspec.json.decode(step.result or "null"))]
        if not result or set(result) - set(recorded):
            yield f"S9: {life.name} returned {result}, and has recorded {recorded}"


@law
def no_item_vanishes(run: Run) -> Iterator[str]:
    """What a job is told of its items has no hole without a recorded failure."""
    for mapped in run.stage.scene.mapped:
        life = run.lives[mapped.job]
        failed = {kept.step.path for kept in life.kept if kept.step.state is StepState.FAILED}
        paths = {effect.given[0]: effect.path for effect in run.effects if effect.job == mapped.job}
        if len(mapped.results) != len(mapped.items):
            yield f"items: {life.name} was told of {len(mapped.results)} items, of {len(mapped.items)}"
        for item, result in zip(mapped.items, mapped.results, strict=False):
            if result is None and paths.get(item) not in failed:
                yield f"items: {life.name}: item {item} vanished: it has no result, and no recorded failure"


@law
def a_stop_is_no_failure(run: Run) -> Iterator[str]:
    """Only code that was cancelled from inside is recorded as cancelled, and never what was cancelled by its caller."""
    for life in run.lives.values():
        for kept in life.kept:
            error = kept.step.error
            if error is not None and error.type.endswith("CancelledError") and kept.step.name != "shaky":
                yield f"items: {life.name}: {kept.step.path} was stopped, and recorded as failed: {error.message}"


@law
def a_recorded_step_does_not_run_again(run: Run) -> Iterator[str]:
    for effect, life, tenure in _owned(run):
        if tenure.claim is None:
            continue
        step = life.standing(effect.path, tenure.claim)
        if step is not None:
            told = f"ran at epoch {effect.epoch}, recorded as {step.state} at {step.epoch}"
            yield f"S10: {life.name}: {effect.path} {told}"
        for kept in life.records_of(effect.path):
            same = kept.step.epoch == effect.epoch and kept.step.state is not StepState.STARTED
            if same and effect.began > kept.act.at + EPSILON:
                yield f"S10: {life.name}: {effect.path} ran again in epoch {effect.epoch}"


@law
def a_worker_that_is_not_answered_starts_nothing(run: Run) -> Iterator[str]:
    """Past its own deadline, counted from its last beat that was answered, a worker starts no step, lost or not."""
    fence = run.plan.tuning.lease * FENCE_PART * (1 + 2 * run.plan.drift) + EPSILON
    beats: defaultdict[str, list[float]] = defaultdict(list)
    for act in run.acts:
        if act.name == "beat":
            beats[act.who].append(act.at)
    for effect in run.effects:
        if not any(effect.began - fence <= at <= effect.began for at in beats[effect.who]):
            yield f"S10f: {effect.path} of {effect.job[-6:]} began in {effect.who}, which was not answered for a lease"


@law
def a_stale_worker_soon_starts_nothing(run: Run) -> Iterator[str]:
    """The fence closes before silence counts as death, unless somebody sets the store's clock forward.

    A worker that beats again between a rescuer's look and its commit opens its fence, and hears of it with the next.
    """
    plan = run.plan
    fence = plan.tuning.lease * FENCE_PART * (1 + 2 * plan.drift) + EPSILON
    for effect, life, tenure in _owned(run):
        if tenure.end is None:
            continue
        late = effect.began - tenure.end.at
        if late <= EPSILON:
            continue
        silent = str(life.note_of(tenure).get("why", "")).startswith("not heard of") and _was_silent(run, tenure)
        by_others = tenure.event in ("lapse", "overrun", "abandon", "cancel")
        if late > fence or not by_others or (silent and not plan.jumps):
            name = "S10z, before a beat named it" if _is_unnamed(run, effect, tenure, fence) else "S10z"
            yield f"{name}: {life.name}: {effect.path} began {late:.3f} s after its lease ended with {tenure.event}"


def _is_unnamed(run: Run, effect: Effect, tenure: Tenure, fence: float) -> bool:
    """Whether the worker beats as it should, and has not yet named this lease: then nobody could tell it."""
    beats = [act for act in run.acts if act.name == "beat" and act.args[0].worker == tenure.worker]
    lately = [act for act in beats if effect.began - fence <= act.at <= effect.began]
    named = ((one.job, one.epoch) for act in beats if act.at <= effect.began for one in act.args[0].running)
    return bool(lately) and (effect.job, effect.epoch) not in named


def _was_silent(run: Run, tenure: Tenure) -> bool:
    """Whether a worker had not beaten for a whole lease when it lost a job."""
    assert tenure.end is not None
    lease_ms = run.plan.tuning.lease * 1_000
    return not any(
        act.name == "beat" and act.args[0].worker == tenure.worker and act.store_at >= tenure.end.store_at - lease_ms
        for act in run.acts[: tenure.end.number]
    )


@law
def a_step_runs_once_a_lease(run: Run) -> Iterator[str]:
    runs: defaultdict[tuple[str, str, int], list[Effect]] = defaultdict(list)
    for effect in run.effects:
        runs[effect.job, effect.path, effect.epoch].append(effect)
    for (job, path, epoch), effects in runs.items():
        if len(effects) > 1 + sum(effect.failed for effect in effects):
            yield f"S11: {path} of {job[-6:]} ran {len(effects)} times in epoch {epoch}"
    if not run.plan.is_calm:
        return
    for life in run.lives.values():
        if life.job.type in RESCUED_WHEN_WELL or any(
            entry.event in ("fail", "cancel", "release") for entry in life.entries
        ):
            continue
        for path in life.steps:
            runs_of_it = [effect for effect in run.effects if (effect.job, effect.path) == (life.job.id, path)]
            if sum(not effect.failed for effect in runs_of_it) > 1:
                yield f"S11: {life.name}: {path} ran more than once, and nothing went wrong"


@law
def a_worker_runs_no_more_than_its_slots(run: Run) -> Iterator[str]:
    for node in run.cast.nodes:
        spans = [(one.began, run.ended(one)) for one in run.handlings if one.who == node.process.name]
        for began, _ in spans:
            at_once = sum(first <= began < last for first, last in spans)
            if at_once > node.hand.at_once:
                yield f"S18: {node.worker.id} ran {at_once} jobs in {node.hand.at_once} slots"
                break
    for life in run.lives.values():
        if life.job.type == "fan":
            limit = msgspec.json.decode(life.job.args)[1]
            mine = [effect for effect in run.effects if effect.job == life.job.id]
            for one in mine:
                others = [e for e in mine if e.epoch == one.epoch and e.began <= one.began < (e.ended or one.began)]
                if len(others) > limit:
                    yield f"S18: {life.name} ran {len(others)} items at once, of {limit}"
                    break


@law
def steps_follow_one_another(run: Run) -> Iterator[str]:
    effects = {effect.token: effect for effect in run.effects}
    for life in run.lives.values():
        if life.job.state != "completed" or life.entries[-1].event != "complete":
            continue
        args = msgspec.json.decode(life.job.args)
        tokens = tokens_in(msgspec.json.decode(life.job.result or "null"))
        given = [effects[token].given for token in tokens if token in effects]
        if life.job.type == "line" and given != list(zip(range(args[0]), ["", *tokens], strict=False)):
            yield f"S22: {life.name} was made of {given}"
        if life.job.type == "fan" and [one[0] for one in given] != list(range(args[0] * 2)):
            yield f"S23: the items of {life.name} came in the order {given}"
        if life.job.type == "nap" and not run.plan.jumps:
            first, second = effects[tokens[0]], effects[tokens[1]]
            slept = second.began - (first.ended or 0.0)
            if slept < NAP_SECONDS * (1 - 3 * run.plan.drift) - 0.01:
                yield f"S17: {life.name} slept {slept:.3f} s, not {NAP_SECONDS}"


@law
def a_cancel_stops_the_spending(run: Run) -> Iterator[str]:
    """Right after the answer nothing is claimed, and on wires that work, no step begins after a moment."""
    for said in run.said:
        life = run.lives.get(said.job)
        if said.kind != "cancel" or said.outcome != OK or life is None or said.until is None:
            continue
        cancel = life.made[life.entries[-1].version]
        if any(tenure.claim is not None and tenure.claim.number > cancel.number for tenure in life.tenures.values()):
            yield f"S24: {life.name} was claimed after it was cancelled"
        if run.only("jump", "stop"):
            yield from _heard_late(run, life, cancel.at)


def _heard_late(run: Run, life: Life, cancelled_at: float) -> Iterator[str]:
    """A cancel reaches the worker by a wake-up and not with the next beat, also one that has been told to stop."""
    bound = cancelled_at + 6 * run.plan.odds.quick_seconds + 6 * run.plan.lateness + 0.05
    stopping = {leave.node.process.name for leave in run.cast.leaves if leave.at <= cancelled_at}
    for effect in run.effects:
        if effect.job == life.job.id and effect.began > bound:
            where = ", in a worker that stops" if effect.who in stopping else ""
            yield f"S24{where}: {life.name}: {effect.path} began {effect.began - cancelled_at:.3f} s after the cancel"
    for one in run.handlings:
        ended = run.ended(one)
        if one.job == life.job.id and life.job.type not in SLOW_TO_STOP and ended > bound:
            where = ", in a worker that stops" if one.who in stopping else ""
            yield f"L5{where}: {life.name} still ran {ended - cancelled_at:.3f} s after its cancel"


@law
def progress_does_not_go_back(run: Run) -> Iterator[str]:
    if not run.is_wired_well:
        return
    done: dict[tuple[str, int, str], int] = {}
    for act in run.acts:
        if act.name == "beat":
            for one in act.args[0].running:
                name = (one.job, one.epoch, one.stage)
                if one.done is not None:
                    if one.done < done.get(name, 0):
                        yield f"S25: stage {one.stage} of {one.job[-6:]} went back from {done[name]} to {one.done}"
                    done[name] = one.done


@law
def nobody_is_rescued_who_is_well(run: Run) -> Iterator[str]:
    if not run.only("stop"):
        return
    for life in run.lives.values():
        if life.job.type in RESCUED_WHEN_WELL or run.plan.has_poison:
            continue
        for entry in life.entries:
            if entry.event in ("lapse", "abandon") or (entry.event == "overrun" and life.job.type != "tardy"):
                yield f"L: {life.name}: {entry.event}, and nothing went wrong: {entry.note}"


@law
def nobody_is_judged_by_an_old_look(run: Run) -> Iterator[str]:
    """What a worker had told the store some time before a job was taken from it must bear out why it was taken."""
    if run.plan.jumps:
        return
    nodes = {node.worker.id: node for node in run.cast.nodes}
    for life in run.lives.values():
        for tenure in life.tenures.values():
            note, end = life.note_of(tenure), tenure.end
            if tenure.event not in ("lapse", "abandon") or "lost" not in note or end is None:
                continue
            if (why := _is_refuted(run, life, tenure, nodes[tenure.worker])) is not None:
                yield f"S37: {life.name} was taken from {tenure.worker}, {note['why']}; {why}"


def _is_refuted(run: Run, life: Life, tenure: Tenure, node: Node) -> str | None:
    """What was known of a worker, a fresh look and a call's time before it lost a job, that speaks against the loss."""
    plan, end = run.plan, tenure.end
    assert end is not None
    known = plan.tuning.lease * LOOK_PART * (1 + 2 * plan.drift) + 8 * plan.odds.quick_seconds + plan.lateness
    known += 0 if run.is_wired_well else 8 * plan.odds.slow_seconds
    beats = [
        act
        for act in run.acts[: end.number]
        if act.name == "beat" and act.args[0].worker == tenure.worker and act.at < end.at - known
    ]
    lives, why = node.died is None or node.died > end.at, str(life.note_of(tenure)["why"])
    leaves = any(leave.node is node and leave.at <= end.at for leave in run.cast.leaves)
    if not beats or not lives or leaves:
        return None
    beat, ago = beats[-1], end.store_at - beats[-1].store_at
    if why.startswith("not heard of"):
        return f"it had beaten {ago} ms ago" if ago <= plan.tuning.lease * 1_000 else None
    if why.startswith("its worker has no status in the store"):
        return f"it had beaten {ago} ms ago"
    for one in beat.args[0].running:
        if (one.job, one.epoch) == (life.job.id, tenure.epoch) and "showed no progress" in why:
            silent = round((one.silent_ms + ago) * (1 + 2 * plan.drift))  # as its worker may count
            limit = one.stale_after_ms
            return f"it was silent for {silent} ms" if limit is not None and silent <= limit else None
    return None


@law
def a_stale_stage_is_found(run: Run) -> Iterator[str]:
    if not run.only():
        return
    tuning = run.plan.tuning
    bound = STALE_SECONDS + 2 * tuning.beat + tuning.upkeep + 2 * tuning.look + 50 * run.plan.odds.quick_seconds + 1.0
    for effect, life, tenure in _owned(run):
        if effect.path.startswith("hang#") and not run.plan.has_poison:
            until = tenure.end.at if tenure.end is not None else run.now
            if until - effect.began > bound:
                yield f"L3: {life.name} showed no progress for {until - effect.began:.1f} s, and nobody cared"


@law
def nobody_runs_what_it_does_not_know(run: Run) -> Iterator[str]:
    unsaid = {node.worker.id: node.hand.unsaid for node in run.cast.nodes}
    for act in run.acts:
        if act.name == "claim" and act.ok:
            for job in act.answer:
                if job.type in unsaid[act.args[0]]:
                    yield f"types: {job.type} {job.id[-6:]} was given to {act.args[0]}, which doesn't know it"
    workers = {node.process.name: node.hand.unsaid for node in run.cast.nodes}
    for one in run.handlings:
        if one.job in run.lives and run.lives[one.job].job.type in workers[one.who]:
            yield f"types: {run.lives[one.job].name} ran in {one.who}, which doesn't know it"


@law
def what_a_running_worker_knows_does_not_wait_for_a_free_slot(run: Run) -> Iterator[str]:
    """Where nothing goes wrong, a job that can be claimed is claimed in a moment by a worker that could have it."""
    if not run.only() or run.plan.has_poison:
        return
    bound = 0.5 + 30 * run.plan.odds.quick_seconds + 20 * run.plan.lateness
    for life in run.lives.values():
        for tenure in life.tenures.values():
            since = ready_since(life, tenure)
            if tenure.claim is None or since is None or tenure.claim.at - since <= bound or life.job.options.limits:
                continue
            idle = [node for node in run.cast.nodes if could_take(run, node, life, since, tenure.claim.at)]
            if idle:
                waited = f"{tenure.claim.at - since:.2f} s, while {idle[0].worker.id} had free slots"
                yield f"L7: {life.name} waited {waited}"


def ready_since(life: Life, tenure: Tenure) -> float | None:
    """When a job became available that was then claimed; None where only the time made it so."""
    before = [entry for entry in life.entries if entry.epoch < tenure.epoch and entry.event != SIGNAL]
    if not before or before[-1].after != "available":
        return None
    act = life.made.get(before[-1].version)
    return None if act is None or before[-1].event == "lapse" else act.at


def could_take(run: Run, node: Node, life: Life, since: float, until: float) -> bool:
    """Whether a worker knew this type, and had a free slot all this time."""
    if life.job.type in node.hand.unsaid or life.job.queue not in node.hand.queues:
        return False
    leaves = [leave.at for leave in run.cast.leaves if leave.node is node]
    if node.born + 1.0 > since or any(at < until for at in (node.died, *leaves) if at is not None):
        return False
    if any(queue == life.job.queue for queue, _, _ in run.callers.pauses):
        return False
    held = [
        tenure
        for other in run.lives.values()
        for tenure in other.tenures.values()
        if tenure.worker == node.worker.id and tenure.claim is not None and tenure.claim.at <= until
        if tenure.end is None or tenure.end.at >= since - 0.5
    ]
    return len(held) < node.hand.at_once


@law
def every_job_settles(run: Run) -> Iterator[str]:
    if run.settled_at is not None:
        return
    for job in run.last.jobs.values():
        if job.state not in SETTLED:
            waits = ", ".join(f"{wait.kind} {wait.name}" for wait in job.waits)
            yield f"L1: {job.type} {job.id[-6:]} is still {job.state}, by {job.worker}, waits for [{waits}]"


@law
def the_lost_are_found(run: Run) -> Iterator[str]:
    tuning, healed = run.plan.tuning, run.healed_at
    bound = 2.5 * tuning.lease + 3 * tuning.look + 2 * tuning.upkeep + 3.0 + run.stage.store.clock.set_back_ms / 1_000
    gone = {node.worker.id for node in run.cast.nodes if node.died is not None and node.died <= healed}
    for at, dump in run.dumps:
        if at < healed + bound:
            continue
        for job in dump.jobs.values():
            if job.state == "active" and job.worker in gone:
                yield f"L3: {job.type} {job.id[-6:]} is held by {job.worker}, which died {at - healed:.1f} s ago"
        break
    if run.only("kill", "massacre") and not run.plan.has_poison:
        yield from _found_late(run)


def _found_late(run: Run) -> Iterator[str]:
    """When nothing but kills happens, the next worker that looks finds what the dead one held."""
    tuning = run.plan.tuning
    bound = tuning.look if run.plan.sees_deaths else 2 * tuning.lease + tuning.look
    nodes = {node.worker.id: node for node in run.cast.nodes}
    for life in run.lives.values():
        for tenure in life.tenures.values():
            if tenure.event != "lapse" or tenure.end is None:
                continue
            end, died = tenure.end.at, nodes[tenure.worker].died
            others = [node for node in run.cast.nodes if node.worker.id != tenure.worker]
            if died is None or not any(o.born < died and (o.died is None or o.died > end) for o in others):
                continue
            if end - died > bound + 20 * run.plan.odds.quick_seconds + 0.5:
                yield f"L2: {life.name} waited {end - died:.2f} s for its rescue, longer than {bound:.2f}"


@law
def workers_come_back_after_trouble(run: Run) -> Iterator[str]:
    """Every running worker beats again soon after the faults, and claims again when it has nothing to do."""
    healed, now = run.healed_at, run.settled_at or run.now
    bound = max(2.0, run.plan.tuning.poll, run.plan.tuning.beat) + 8 * run.plan.odds.slow_seconds + 1.0
    for node in run.cast.nodes:
        if node.born > healed or (node.died is not None and node.died <= now):
            continue
        busy = [run.ended(one) for one in run.handlings if one.who == node.process.name]
        for call, since in (("beat", healed), ("claim", max([healed, *busy]))):
            if now > since + bound and node.process.wire.answered.get(call, 0.0) < healed:
                yield f"L4: {node.worker.id} had no {call} answered since the faults are over"


@law
def a_stop_is_short_and_releases(run: Run) -> Iterator[str]:
    bound = run.plan.tuning.grace + 2 * HALT_SECONDS + LEAVE_SECONDS + STOP_SECONDS + 8 * run.plan.odds.slow_seconds
    for leave in run.cast.leaves:
        if leave.disturbed:
            continue
        if leave.until is None or leave.until - leave.at > bound:
            yield f"L6: {leave.node.worker.id} was told to stop at {leave.at:.1f} and ended at {leave.until}"
        if not run.is_answered or leave.until is None:
            continue
        for life in run.lives.values():
            for tenure in life.tenures.values():
                if tenure.worker == leave.node.worker.id and (tenure.end is None or tenure.end.at > leave.until):
                    yield f"L6: {leave.node.worker.id} has stopped, and still holds {life.name}"


@law
def handlers_end(run: Run) -> Iterator[str]:
    killed = {node.process.name for node in run.cast.nodes if node.died is not None}
    blocked = {node.process.name for node in run.cast.nodes if node.process.strand("main").held}  # by a job of its own
    for one in run.handlings:
        if one.ended is None and one.who not in killed | blocked:
            yield f"L5: the handler of {one.job[-6:]} at epoch {one.epoch} still runs in {one.who}"
