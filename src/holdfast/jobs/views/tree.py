"""A job and the jobs below it as a tree: for a flow also the steps not started yet. Must not change anything."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from holdfast.core.flows import advance
from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import PAGE_LIMIT, Error, Job, State, Where
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.flows import FLOW_TYPE, FlowRun, load_flow
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.shapes import Shape
from holdfast.jobs.views.text import error_line, short_id
from holdfast.safe_text import clean

TREE_DEPTH = 10
"""How many levels of jobs are read below the first one."""

TREE_PAGES = 20
"""How many pages of children are read in all. What lies beyond is left out."""

LINES_SHOWN = 12
"""How many jobs of one level `str(tree)` shows. Failed and unfinished ones come first; the others are counted."""


class Tree(Struct, frozen=True, kw_only=True):
    """One job of a tree. `state` is None, and `id` empty, for a step of a flow that hasn't started."""

    name: str
    type: str
    id: str = ""
    state: State | None = None
    error: Error | None = None
    never: bool = False
    """Whether it will never start, because of what became of the steps before it."""
    parts: tuple["Tree", ...] = ()

    def __str__(self) -> str:
        """Return the tree as text, one line for each job."""
        return "\n".join(lines(self))

    @property
    def words(self) -> str:
        """Say what became of it: "completed", "not started yet", "review: ValueError: no paint left"."""
        if self.state is None:
            return "never started" if self.never else "not started yet"
        failed = error_line(self.error, 80) if self.state in SETTLED and not self.parts else ""
        return f"{self.state}{f': {failed}' if failed else ''}"

    def counts(self) -> dict[str, int]:
        """Count the parts by what became of them."""
        return dict(Counter(one.state or ("never started" if one.never else "not started yet") for one in self.parts))


class _Reader:
    """Reads trees, within a bound for all of them."""

    def __init__(self, jobs: Jobs) -> None:
        self._engine = jobs.engine
        self._pages = TREE_PAGES

    async def tree(self, job: Job, name: str, depth: int = 0) -> Tree:
        children = await self._children(job) if depth < TREE_DEPTH and job.epoch else []
        run = await load_flow(self._engine, job) if job.type == FLOW_TYPE else None
        parts: list[Tree] = []
        if run is None:
            parts = [await self.tree(child, child.type, depth + 1) for child in children]
        else:
            there = {child.id: child for child in children}
            ended = {place: one.state is State.COMPLETED for place, one in _settled(run, there)}
            never = set(advance(run.flow, ended).skipped)
            for place in range(len(run.flow.steps)):
                child = there.get(run.id_of(place))
                if child is not None:
                    parts.append(await self.tree(child, run.name_of(place), depth + 1))
                else:
                    call = run.calls[run.flow.steps[place].call]
                    is_over = place in never or job.state in SETTLED
                    parts.append(Tree(name=run.name_of(place), type=call.type, never=is_over))
            name = run.flow.name or run.flow.kind
        return Tree(name=name, type=job.type, id=job.id, state=job.state, error=job.error, parts=tuple(parts))

    async def _children(self, job: Job) -> list[Job]:
        found: list[Job] = []
        after = ""
        while self._pages:
            self._pages -= 1
            page = await self._engine.find(Where(parent=job.id), after)
            found += page
            if len(page) < PAGE_LIMIT:
                break
            after = page[-1].id
        found = [child for child in found if child.type != UNDO_TYPE]
        return sorted(found, key=lambda child: child.created_at)


def _settled(run: FlowRun, there: Mapping[str, Job]) -> Iterator[tuple[int, Job]]:
    for place in range(len(run.flow.steps)):
        child = there.get(run.id_of(place))
        if child is not None and child.state in SETTLED:
            yield place, child


async def view_tree(jobs: Jobs, job: Job) -> Tree:
    """Read a job and all jobs below it."""
    return await _Reader(jobs).tree(job, job.type)


def tree_shape(tree: Tree) -> Shape:
    """As JSON."""
    parts = {"parts": [tree_shape(one) for one in tree.parts]} if tree.parts else {}
    return {"name": tree.name, "type": tree.type, "id": tree.id or None, "state": tree.state, "is": tree.words, **parts}


def lines(tree: Tree, indent: str = "", mark: str = "") -> Iterator[str]:
    """Yield the lines of a tree, each with the branches that lead to it."""
    where = f" {short_id(tree.id)}" if tree.id else ""
    yield f"{indent}{mark}{clean(tree.name)}{where}: {tree.words}"
    below = indent + {"": "", "├─ ": "│  ", "└─ ": "   "}[mark]
    shown, rest = _shown(tree.parts)
    for number, part in enumerate(shown, 1):
        is_last = number == len(shown) and not rest
        yield from lines(part, below, "└─ " if is_last else "├─ ")
    if rest:
        yield f"{below}└─ and {', '.join(f'{number:,} more {words}' for words, number in rest.items())}"


def _shown(parts: Sequence[Tree]) -> tuple[list[Tree], dict[str, int]]:
    """Return the parts to show in their order, and the count of the others by what became of them."""
    if len(parts) <= LINES_SHOWN:
        return list(parts), {}
    telling = sorted(range(len(parts)), key=lambda place: (_interest(parts[place]), place))[: LINES_SHOWN - 1]
    chosen = set(telling)
    rest = Tree(name="", type="", parts=tuple(one for place, one in enumerate(parts) if place not in chosen))
    return [parts[place] for place in sorted(chosen)], rest.counts()


def _interest(one: Tree) -> int:
    """Return 0 for a failed job, 1 for one that runs or has jobs of its own, 2 for any other."""
    if one.state in (State.REVIEW, State.DISCARDED, State.CANCELLED, State.RETRYABLE):
        return 0
    return 1 if one.state is State.ACTIVE or one.parts else 2
