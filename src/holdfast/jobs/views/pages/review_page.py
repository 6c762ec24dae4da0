"""Reads what needs a person: the inbox, questions with their forms, effects in doubt, failures.

Must not decide anything.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.core.keys import idempotency_key
from holdfast.core.model import Entry, Job, State, Step, StepState, Time
from holdfast.core.reruns import Again, again_in, generation_of
from holdfast.jobs.questions import Question
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.form import fields_of
from holdfast.jobs.views.in_doubt import StepInDoubt, steps_in_doubt, steps_that_may_not_fit
from holdfast.jobs.views.pages.acts import answer_act, doubt_acts, review_acts
from holdfast.jobs.views.pages.lines import as_sentence, name_of
from holdfast.jobs.views.pages.overview import view_needs
from holdfast.jobs.views.pages.parts import error_shown, moment
from holdfast.jobs.views.pages.reviews import (
    DoubtCard,
    FormField,
    QuestionCard,
    ReviewCard,
    ReviewGroupLine,
    ReviewGroups,
    ReviewItem,
    ReviewLine,
    ReviewPage,
)
from holdfast.jobs.views.pages.values import value_shown
from holdfast.jobs.views.remarks import owner_words, refusal_words
from holdfast.jobs.views.review_groups import ReviewGroup, view_groups
from holdfast.jobs.views.shapes import time_text
from holdfast.jobs.views.step_names import name_steps
from holdfast.jobs.views.text import ago, error_line, plural, short_id, span, time_left
from holdfast.safe_text import clean

INBOX_SHOWN = 200
"""How many lines the inbox has at most."""


async def view_review_page(jobs: Jobs) -> ReviewPage:
    """Read the inbox: questions first, then the jobs in review, the newest first."""
    needs, now = await view_needs(jobs, INBOX_SHOWN), await jobs.engine.now()
    review = sum(number for (_, state), number in (await jobs.engine.count()).items() if state is State.REVIEW)
    questions = sum(one.kind == "question" for one in needs)
    total = questions + review
    parts = [plural(questions, "question") if questions else "", f"{plural(review, 'job')} in review" if review else ""]
    said = " and ".join(part for part in parts if part)
    return ReviewPage(
        now=moment(now),
        sentence=as_sentence(
            f"{said} {'needs' if total == 1 else 'need'} a person" if total else "nothing needs a person"
        ),
        lines=tuple(
            ReviewLine(
                kind=one.kind,
                job=one.job,
                short=one.short,
                name=one.name,
                type=one.type,
                words=one.words,
                since=one.since,
                until=one.until,
                question=one.question,
            )
            for one in needs
        ),
        total=total,
    )


async def view_review_groups(jobs: Jobs) -> ReviewGroups:
    """Read the jobs in review by what stopped them, the largest group first."""
    found, now = await view_groups(jobs), await jobs.engine.now()
    total = sum(group.count for group in found)
    words = f"{plural(total, 'job')} in review, in {plural(len(found), 'group')}" if found else "no job is in review"
    return ReviewGroups(
        now=moment(now), sentence=as_sentence(words), groups=tuple(map(_group_line, found)), total=total
    )


def _group_line(group: ReviewGroup) -> ReviewGroupLine:
    return ReviewGroupLine(
        type=group.type,
        step=group.step,
        error=group.error,
        count=group.count,
        first=moment(group.first),
        last=moment(group.last),
        in_doubt=group.in_doubt,
        message=group.message,
        examples=group.examples,
        where={"type": group.type, "step": group.step, "error": group.error},
    )


async def view_review_item(jobs: Jobs, id: str, schema: Mapping[str, Any] | None = None) -> ReviewItem:
    """Read what is open for one job."""
    job, now = await jobs.get(id), await jobs.engine.now()
    questions = await jobs.questions_among([job])
    return ReviewItem(
        now=moment(now),
        questions=tuple(question_card(job, one, now) for one in questions),
        review=await review_card(jobs, job, now, schema) if job.state is State.REVIEW else None,
    )


def question_card(job: Job, one: Question, now: Time) -> QuestionCard:
    """Return a question with its form."""
    left = "" if one.until is None else f", {time_left(one.until, now)}"
    return QuestionCard(
        job=job.id,
        short=short_id(job.id),
        job_name=name_of(job),
        type=job.type,
        name=one.name,
        question=one.value,
        sentence=as_sentence(f"asked {ago(one.asked_at, now)}{left}"),
        fields=tuple(
            FormField(
                name=field.name,
                kind=field.kind,
                takes=field.takes(),
                choices=tuple(field.choices.values()),
                is_required=field.is_required,
                description=field.description,
                default=field.default,
                schema=dict(field.schema),
            )
            for field in fields_of(one.schema)
        ),
        schema=one.schema,
        asked_at=moment(one.asked_at),
        until=time_text(one.until),
        refused="" if one.refused is None else refusal_words(one.refused),
        act=answer_act(job.id, one.name),
    )


async def review_card(jobs: Jobs, job: Job, now: Time, schema: Mapping[str, Any] | None = None) -> ReviewCard:
    """Return a job in review with its open decisions."""
    steps, history = await jobs.engine.steps(job.id), await jobs.history(job.id)
    brought = [entry for entry in history if entry.before is not State.REVIEW]  # signals may have arrived since
    since = brought[-1].at if brought else job.created_at
    own = {step.path: step for step in steps if not step.path.startswith("~")}
    names = name_steps(job, list(own.values()))
    doubts, reruns = steps_in_doubt(job, steps), again_in(steps)
    return ReviewCard(
        job=job.id,
        short=short_id(job.id),
        name=name_of(job),
        type=job.type,
        queue=job.queue,
        kind="doubt" if doubts else "failure",
        sentence=as_sentence(error_line(job.error) or "no error was recorded"),
        since=moment(since),
        since_words=f"for {span(max(0, now - since))}",
        before=", ".join(owner_words(job)),
        error=error_shown(job.error),
        doubts=tuple(_doubt(job, one, own, names, history, reruns) for one in doubts),
        may_not_fit=tuple(
            _doubt(job, one, own, names, history, reruns) for one in steps_that_may_not_fit(job, steps, history)
        ),
        arguments=await value_shown(jobs.engine, job.args),
        schema=None if schema is None else dict(schema),
        replay_words=_replay_words(list(own.values()), len(doubts)),
        acts=review_acts(job.id),
    )


def _doubt(
    job: Job,
    one: StepInDoubt,
    steps: Mapping[str, Step],
    names: Mapping[str, str],
    history: list[Entry],
    reruns: Mapping[str, Again],
) -> DoubtCard:
    step = steps.get(one.path)
    claims = {entry.epoch: entry.by for entry in history if entry.event == "claim"}
    happened, again = doubt_acts(job.id, one.path)
    return DoubtCard(
        path=one.path,
        name=clean(names.get(one.path, one.path)),
        sentence=as_sentence(one.words),
        error=one.raised,
        started_at=None if step is None else moment(step.started_at),
        worker="" if step is None else claims.get(step.epoch, ""),
        key=idempotency_key(job.id, one.path, generation_of(one.path, reruns)),
        happened=happened,
        again=again,
    )


def _replay_words(steps: list[Step], doubts: int) -> str:
    """Say what a replay keeps, and what it does again."""
    done = sum(step.state is StepState.DONE for step in steps)
    failed = sum(step.state is StepState.FAILED for step in steps)
    kept = f"{plural(done, 'recorded step keeps its result', 'recorded steps keep their results')}" if done else ""
    again = f"{plural(failed, 'failed step runs again', 'failed steps run again')}" if failed else ""
    first = f"first decide {plural(doubts, 'effect')} in doubt" if doubts else ""
    said = "; ".join(part for part in (first, kept, again) if part)
    return as_sentence(said or "it runs from the start: no step was recorded")
