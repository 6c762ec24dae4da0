"""`holdfast replay`, `resolve`, `discard`: what a person does about jobs in review. Must not decide (`lifecycle`)."""

import shlex
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from holdfast.app.app import App
from holdfast.blobs.local import LocalFile, files_beside
from holdfast.cli.bulk import run_act, selection_of, selection_options
from holdfast.cli.errors import echo
from holdfast.cli.json_options import parse_arguments, parse_json, read_text
from holdfast.cli.load_app import check_step_result, load_app, signature_in, spec_in
from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import app_option, job_ids, json_option, reason_option, url_option
from holdfast.cli.person import at_terminal, confirm, whoami
from holdfast.cli.render.screen import console, say_json
from holdfast.core.codec import Signature, canonical
from holdfast.core.errors import HoldfastError, NotAllowed, NotFound, Refused
from holdfast.core.lifecycle import standing
from holdfast.core.model import Job, State
from holdfast.jobs.bulk_acts import Act, check_act, count_concerned
from holdfast.jobs.ids import find_ids
from holdfast.jobs.large_values import arguments_of
from holdfast.jobs.replay_plans import Plan, PlanOfMany, preview_replay, preview_replays
from holdfast.jobs.selections import Selection
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import Status
from holdfast.jobs.views.in_doubt import StepInDoubt, steps_in_doubt
from holdfast.jobs.views.plans import plan_of_many_shape, plan_shape
from holdfast.jobs.views.shapes import status_shape
from holdfast.jobs.views.text import one_line, plural, short_id

REVIEW_IDS = job_ids(State.REVIEW)

PLANS_SHOWN = 10
"""How many plans are shown before the question."""


@click.command(
    epilog="""\b
Examples:
  holdfast replay 4f2a91bc
  holdfast replay 4f2a91bc 77ab01ce --reason "quota raised"
  holdfast replay 4f2a91bc --args '[{"title": "The Lighthouse"}]' --app video:app
  holdfast replay 4f2a91bc --preview
  holdfast replay --type make_video --error ProviderError --preview
  holdfast replay --failed-in draw --reason "quota raised"

\b
Without ids, replays all jobs in review that match the options, after showing what will run and
asking (--yes skips the question). A worker does it, as a job of type holdfast.bulk: it survives a
crash, holdfast status shows how far it is, holdfast cancel stops it.
With ids, you are shown the same and asked on a terminal. Elsewhere they are replayed at once,
unless an effect is in doubt: then decide first, or pass --yes.
--preview shows what would run, what is kept, what is in doubt, and about how long it takes and
what it costs, and changes nothing.
Recorded steps don't run again; failed ones do. The attempts start from 1 again.
--args is the whole list of arguments, as `holdfast show` prints it: in the function's order,
keyword-only ones in a last {"**": {"name": value}}. Without --app, any list is accepted, and
arguments that don't fit fail when the job runs.
--json prints the job's new status; with several ids {"jobs": [...], "refused": [...]}.
"""
)
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=REVIEW_IDS)
@selection_options
@click.option("--preview", is_flag=True, help="Show what would run, and change nothing.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--args", metavar="JSON", help="New arguments, as a JSON array. For one job only.")
@app_option
@reason_option
@json_option
@url_option
def replay(
    ids: tuple[str, ...],
    preview: bool,
    yes: bool,
    args: str | None,
    target: str | None,
    reason: str,
    as_json: bool,
    url: str | None,
    **given: Any,
) -> None:
    """Run jobs in review again. Recorded steps keep their results."""
    chosen = selection_of(ids, given)
    if args is not None:
        if len(ids) != 1:
            raise click.UsageError("--args is for one job: give one ID")
        args = parse_arguments("--args", args)
    call = Call(ids, "replayed", as_json, url, target)

    def check(job: Job, signature: Signature) -> None:
        signature.decode(job.args if args is None else args)

    if preview:
        _preview(call, chosen, args, check)
        return
    if chosen is not None:
        run_act(Act("replay", chosen, by=whoami(), reason=reason), yes=yes, as_json=as_json, url=call.place)
        return
    if not yes:
        _look_first(call, args)
    _each(call, lambda jobs, id: jobs.replay(id, args=args, by=whoami(), reason=reason), check)


def _preview(call: "Call", chosen: Selection | None, args: str | None, check: "Check") -> None:
    """Show what a replay would do."""
    if chosen is not None:
        many = run_in_store(call.place, lambda jobs: preview_replays(jobs, chosen))
        say_json(plan_of_many_shape(many)) if call.as_json else _print(many)
        return

    async def read(jobs: Jobs) -> list[Plan]:
        whole = await find_ids(jobs, call.ids)
        await _check_each(jobs, call, whole, check)
        return [await preview_replay(jobs, id, args=args) for id in whole]

    plans = run_in_store(call.place, read)
    if call.as_json:
        say_json({"plans": [plan_shape(plan) for plan in plans]})
    for plan in () if call.as_json else plans:
        _print(plan)


def _look_first(call: "Call", args: str | None) -> None:
    """On a terminal, show what the replay would do, and ask. Elsewhere, refuse one that would stop at once: at an
    effect in doubt.
    """

    async def read(jobs: Jobs) -> list[Plan]:
        plans: list[Plan] = []
        for id in await find_ids(jobs, call.ids):
            with suppress(NotAllowed, NotFound):  # it is refused with the others, below
                plans.append(await preview_replay(jobs, id, args=args))
        return plans

    plans = run_in_store(call.place, read)
    if at_terminal() and plans:
        for plan in plans[:PLANS_SHOWN] if not call.as_json else ():
            _print(plan)
        confirm(f"replay {plural(len(plans), 'job')}?")
    elif doubted := next((plan for plan in plans if plan.in_doubt), None):
        path = doubted.in_doubt[0]
        raise NotAllowed(
            f"job {doubted.job}: {path} is in doubt, so a replay would stop before it; say whether it happened with "
            f"holdfast resolve {doubted.job} --step {shlex.quote(path)}, or pass --yes"
        )


def _print(plan: Plan | PlanOfMany) -> None:
    console().print(str(plan), soft_wrap=True, markup=False)


@click.command(
    epilog="""\b
Examples:
  holdfast resolve 4f2a91bc --result '{"url": "https://example.org/film.mp4"}'
  holdfast resolve 4f2a91bc --result '"a text"' --app video:app
  holdfast resolve 4f2a91bc --result null --reason "done by hand"
  holdfast resolve 4f2a91bc --step 'send#order-42' --result '"sent"'
  holdfast resolve 4f2a91bc --step 'send#order-42' --again
  holdfast resolve --type make_video --error ProviderError --result null

\b
The job completes with this result, as if it had returned it. Without --app, any JSON is
accepted, and a result that doesn't fit fails where it is read. With --app, it must fit the type
of each job that would get it.
--step decides a step in doubt: its effect was started but not recorded. Name the step by the
path that `holdfast show` prints. Pass --result if it happened, with what it returned, or --again
if it didn't. When the last step in doubt is resolved, the job continues.
--json prints the job's new status.
"""
)
@click.argument("id", required=False, shell_complete=REVIEW_IDS)
@selection_options
@click.option("--yes", is_flag=True, help="Don't ask. For many jobs.")
@click.option("--result", metavar="JSON", help="The result, or @FILE with it.")
@click.option("--step", "path", metavar="STEP", help="A step in doubt, instead of the whole job.")
@click.option("--again", is_flag=True, help="The step didn't happen: run it again.")
@app_option
@reason_option
@json_option
@url_option
def resolve(
    id: str | None,
    yes: bool,
    result: str | None,
    path: str | None,
    again: bool,
    target: str | None,
    reason: str,
    as_json: bool,
    url: str | None,
    **given: Any,
) -> None:
    """Complete a job in review with your own result, or decide whether a step in doubt happened."""
    chosen = selection_of(() if id is None else (id,), given)
    if chosen is not None or id is None:
        if path is not None or again or result is None:
            raise click.UsageError("many jobs get one result: give --result JSON, without --step and --again")
        text = canonical(_parse_result(result))
        act = Act("resolve", chosen or Selection(), by=whoami(), reason=reason, result=text)
        call = Call((), "resolved", as_json, url, target)
        _check_result_of_many(call, act)
        run_act(act, yes=yes, as_json=as_json, url=call.place)
        return
    if again and path is None:
        raise click.UsageError("--again is for a step in doubt: name it with --step")
    if again and result is not None:
        raise click.UsageError("--again means that the step didn't happen, --result that it did; give one of them")
    if path is not None and not again and result is None:
        raise click.UsageError("add --result JSON if the step happened, or --again if it didn't")
    if path is None and result is None:
        _name_doubts(id, url)
        raise _missing("result")
    value = None if result is None else _parse_result(result)
    if path is not None:
        call = Call((id,), f"resolved {one_line(path, 60)} of", as_json, url, target)
        _resolve_step(call, path, value, again, reason)
        return
    _each(
        Call((id,), "resolved", as_json, url, target),
        lambda jobs, whole: jobs.resolve(whole, value, by=whoami(), reason=reason),
        lambda job, signature: signature.result.decode(canonical(value)),
    )


def _check_result_of_many(call: "Call", act: Act) -> None:
    """Refuse a result that doesn't fit each type of the jobs that would get it."""
    if call.app is None or call.target is None:
        return
    for type in run_in_store(call.place, lambda jobs: count_concerned(jobs, check_act(act))):
        spec_in(call.app, call.target, type).signature.result.decode(act.result)


_held: list[LocalFile] = []
"""The files of a result that couldn't be stored. They are uploaded with it."""


def _parse_result(given: str) -> Any:
    """Return a result as given, or from a file. Files that lie beside it, under their hashes, stand for its blobs."""
    text = read_text("--result", given)
    if given.startswith("@"):
        _held.extend(files_beside(Path(given[1:]), text))
    return parse_json("--result", text)


def _name_doubts(id: str, url: str | None) -> None:
    """Refuse to resolve a job without saying how; for a job with steps in doubt, say which, and print the commands."""

    async def work(jobs: Jobs) -> list[StepInDoubt]:
        try:
            (whole,) = await find_ids(jobs, (id,))
            return steps_in_doubt(await jobs.get(whole), await jobs.engine.steps(whole))
        except Refused:  # that is not what is missing
            return []

    try:
        doubts = run_in_store(url, work)
    except HoldfastError:  # nor is what is wrong with the store
        return
    if doubts:
        first = doubts[0]
        more = f" (and {len(doubts) - 1} more in doubt)" if len(doubts) > 1 else ""
        raise click.UsageError(
            f"{first.words}{more}; if it did, run {first.if_it_happened}; if it didn't, run {first.if_it_did_not}"
        )


def _missing(name: str) -> click.MissingParameter:
    """Return the error for an option that is required only without certain other options."""
    ctx = click.get_current_context()
    return click.MissingParameter(ctx=ctx, param=next(param for param in ctx.command.params if param.name == name))


def _resolve_step(call: "Call", path: str, result: object, again: bool, reason: str) -> None:
    """Decide whether a step in doubt happened."""

    async def act(jobs: Jobs, id: str) -> Job:
        await jobs.get(id)  # so that a missing job gets its own error
        if call.target is not None and not again:
            for step in await jobs.engine.steps(id):
                if step.path == path:  # an unknown path is refused below
                    check_step_result(call.target, step.name, result)
        return await jobs.resolve_step(id, path, result, again=again, by=whoami(), reason=reason)

    _each(call, act)


@click.command(
    epilog="""\b
Examples:
  holdfast discard 4f2a91bc --reason "the customer left"
  holdfast discard 4f2a91bc 77ab01ce --yes
  holdfast discard --type make_video --error BadBrief --reason "no longer wanted"

\b
This can't be reverted, and what the job made is undone. With several jobs, --yes or an answer is
required. Without ids, a worker discards all that match: see holdfast replay --help.
--json prints the job's new status; with several ids {"jobs": [...], "refused": [...]}.
"""
)
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=REVIEW_IDS)
@selection_options
@click.option("--yes", is_flag=True, help="Don't ask.")
@reason_option
@json_option
@url_option
def discard(ids: tuple[str, ...], yes: bool, reason: str, as_json: bool, url: str | None, **given: Any) -> None:
    """Give up jobs in review permanently."""
    chosen = selection_of(ids, given)
    if chosen is not None:
        run_act(Act("discard", chosen, by=whoami(), reason=reason), yes=yes, as_json=as_json, url=url)
        return
    if len(ids) > 1 and not yes:
        confirm(f"discard {plural(len(ids), 'job')} permanently?")
    _each(
        Call(ids, "discarded", as_json, url),
        lambda jobs, id: jobs.discard(id, by=whoami(), reason=reason),
    )


Check = Callable[[Job, Signature], object]
"""Refuses a value that doesn't fit a job, given its signature."""


@dataclass(frozen=True)
class Call:
    """What these verbs share: the jobs, the output, the store, and the App that checks values."""

    ids: tuple[str, ...]
    done: str
    as_json: bool
    url: str | None
    target: str | None = None

    @cached_property
    def app(self) -> App | None:
        """The App that checks values, if one is given."""
        return None if self.target is None else load_app(self.target)

    @property
    def place(self) -> str | None:
        """The URL of the store: the given one, or the App's."""
        return self.url or (None if self.app is None else self.app.url)


async def _check_each(jobs: Jobs, call: Call, ids: Sequence[str], check: Check) -> None:
    """Check the value that each of these jobs would get, if there is an App that can."""
    if call.app is None or call.target is None:
        return
    for id in ids:
        job = await jobs.get(id)
        job = replace(job, args=await arguments_of(jobs.engine, job))
        check(job, signature_in(call.app, call.target, job))


def _each(call: Call, act: Callable[[Jobs, str], Awaitable[Job]], check: Check | None = None) -> None:
    """Do the same to each job. All jobs are looked up and checked before the first one is changed.

    A refusal doesn't stop the others.
    """

    async def work(jobs: Jobs) -> tuple[list[Status], list[tuple[str, Refused]]]:
        done: list[Status] = []
        refused: list[tuple[str, Refused]] = []
        whole = await find_ids(jobs, call.ids)
        if check is not None:
            await _check_each(jobs, call, whole, check)
        for id in whole:
            try:
                job = await act(jobs, id)
            except (NotAllowed, NotFound) as error:
                refused.append((id, error))
                continue
            done += await jobs.statuses([job])
            if not call.as_json:
                left = len(steps_in_doubt(job, await jobs.engine.steps(id)))
                more = f", {plural(left, 'step')} still in doubt" if left else ""
                waits = job.state is State.AVAILABLE
                then = "; it waits for a worker" if waits else f": it is {standing(job.state)}"
                console().print(f"{call.done} {short_id(id)}{then}{more}")
        return done, refused

    _tell(call, *run_in_store(call.place, work, write=True))


def _tell(call: Call, done: list[Status], refused: list[tuple[str, Refused]]) -> None:
    several = len(call.ids) > 1
    if call.as_json and several:
        whys = [{"id": id, "why": str(error)} for id, error in refused]
        say_json({"jobs": [status_shape(status) for status in done], "refused": whys})
    else:
        for status in done if call.as_json else ():
            say_json(status_shape(status))
        for _, error in refused:
            echo(f"holdfast: {error}", err=True)
    if refused:
        raise SystemExit(1)
