"""A page of jobs that match a filter: fast by index, or bounded. Must not change anything."""

from collections.abc import Mapping

from msgspec import Struct

from holdfast.core.errors import Invalid, NotFound
from holdfast.core.keys import new_id
from holdfast.core.lifecycle import standing
from holdfast.core.model import PAGE_LIMIT, Job, State, Time, Where
from holdfast.core.searches import Page, matches
from holdfast.jobs.ids import find_job
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.names import suggest_names
from holdfast.jobs.views.pages.lines import as_sentence, job_lines
from holdfast.jobs.views.pages.parts import JobLine, Moment, StateCount, moment
from holdfast.jobs.views.text import error_line, one_line, plural

ERROR_READ = 4_000
"""How many characters of an error are searched."""

ERRORS_READ = 2_000
"""How many jobs in review a search for an error reads at most: more take longer than a page may."""


class Token(Struct, frozen=True):
    """One part of a filter, as a person sees it: "state", "review"."""

    name: str
    value: str
    words: str


class JobsPage(Struct, frozen=True, kw_only=True):
    """A page of jobs.

    `next` is the cursor of the next page. `has_scanned_out` means that no index serves this combination, and the
    search stopped after `scanned` jobs: there may be more behind `next`, even if the page is short.
    """

    now: Moment
    sentence: str
    """How many match, in words: "1,000+ jobs in review"."""
    tokens: tuple[Token, ...]
    jobs: tuple[JobLine, ...]
    next: str | None
    scanned: int
    has_scanned_out: bool
    hint: str
    """What was probably meant by a queue or a type that the store doesn't know."""
    states: tuple[StateCount, ...]
    """Jobs by state, in the filter's queue or in all. Empty if the store can't count by the rest of the filter."""


class Search(Struct, frozen=True, kw_only=True):
    """What to search for. `at` is a time to start at, `error` a text in the error, for jobs in review."""

    where: Where = Where()
    id: str | None = None
    at: Time | None = None
    error: str | None = None
    after: str = ""
    limit: int = 100

    @property
    def is_counted(self) -> bool:
        """Whether the store counts what matches: jobs of a queue, or of all, by state."""
        one = self.where
        return not (one.type or one.key or one.parent or self.error or self.id or self.at)

    def tokens(self) -> tuple[Token, ...]:
        """Return the filter in words, part by part."""
        one = self.where
        parts = [Token("state", state.value, standing(state)) for state in one.states]
        named = {"queue": one.queue, "type": one.type, "key": one.key, "parent": one.parent, "id": self.id}
        parts += [Token(name, value, f"{name} {one_line(value, 60)}") for name, value in named.items() if value]
        if self.error:
            parts.append(Token("error", self.error, f"error with {one_line(self.error, 60)!r}"))
        return tuple(parts)


async def view_jobs_page(jobs: Jobs, search: Search) -> JobsPage:
    """Find a page of jobs."""
    now = await jobs.engine.now()
    page = await _found(jobs, search)
    where, more = search.where, page.next is not None
    hint = "" if page.jobs else await suggest_names(jobs, where.queue, where.type)
    counts = await _counts(jobs, where.queue) if search.is_counted else {}
    return JobsPage(
        now=moment(now),
        sentence=_sentence(search, page, more, counts),
        tokens=search.tokens(),
        jobs=await job_lines(jobs, page.jobs),
        next=page.next,
        scanned=page.scanned,
        has_scanned_out=page.is_cut,
        hint=hint,
        states=tuple(StateCount(state.value, number) for state, number in counts.items()),
    )


async def _counts(jobs: Jobs, queue: str | None) -> dict[State, int]:
    """Count the jobs of a queue, or of all, by state."""
    counts = dict.fromkeys(State, 0)
    for (name, state), number in (await jobs.engine.count()).items():
        if queue in (None, name):
            counts[state] += number
    return counts


async def _found(jobs: Jobs, search: Search) -> Page:
    engine, where = jobs.engine, search.where
    if search.error is not None and where.states != (State.REVIEW,):
        raise Invalid("error= searches only jobs in review; add state=review")
    if search.id is not None:
        try:
            found = await find_job(jobs, search.id)
        except NotFound:
            return Page(jobs=())
        return Page(jobs=tuple(job for job in [found] if matches(job, where) and _has_error(job, search)), scanned=1)
    after = search.after or ("" if search.at is None else place_of(search.at, newest_first=where.newest_first))
    if search.error is not None:
        return await _with_error(jobs, search, after)
    return await engine.search(where, after, search.limit)


def _has_error(job: Job, search: Search) -> bool:
    return not search.error or search.error.casefold() in error_line(job.error, ERROR_READ).casefold()


async def _with_error(jobs: Jobs, search: Search, after: str) -> Page:
    """Search the errors of jobs in review, page by page, up to ERRORS_READ jobs."""
    found: list[Job] = []
    scanned = 0
    while scanned < ERRORS_READ:
        page = await jobs.engine.search(search.where, after, PAGE_LIMIT)
        for number, job in enumerate(page.jobs, scanned + 1):
            if _has_error(job, search):
                found.append(job)
                if len(found) == search.limit:
                    return Page(jobs=tuple(found), next=job.id, scanned=number)
        scanned += max(page.scanned, len(page.jobs))
        if page.next is None:
            return Page(jobs=tuple(found), scanned=scanned)
        after = page.next
    return Page(jobs=tuple(found), next=after, scanned=scanned, is_cut=True)


def _sentence(search: Search, page: Page, more: bool, counts: Mapping[State, int]) -> str:
    """Say how many jobs match: exactly if one page has them all, or if the store counts them."""
    which = ", ".join(token.words for token in search.tokens())
    where = search.where
    if search.is_counted and not search.after:
        number = sum(count for state, count in counts.items() if not where.states or state in where.states)
        return as_sentence(plural(number, "job") + (f": {which}" if which else ""))
    number = len(page.jobs)
    least = f"{number:,}+ jobs" if more else plural(number, "job")
    searched = f"; looked at {page.scanned:,} jobs so far" if page.is_cut else ""
    return as_sentence(f"{least}{' on this page' if search.after else ''}{f': {which}' if which else ''}{searched}")


def place_of(at: Time, *, newest_first: bool) -> str:
    """Return the id to start after, so that the first job is one submitted at this time."""
    return new_id(max(0, at + 1 if newest_first else at), 0)
