"""One job as a page: its sentence, stages, items, story, costs, and what was asked.

It stays small however large the job is: of long lists it has a part, and other calls have the rest.
"""

from msgspec import Struct

from holdfast.jobs.views.pages.parts import Act, ErrorShown, Fact, JobLine, Moment, Value
from holdfast.jobs.views.pages.reviews import QuestionCard, ReviewCard

CELLS_SHOWN = 60
"""A stage with more items is shown as squares."""

SQUARES = 600
"""How many squares there are at most. With more items, each square stands for several of them."""

STORY_SHOWN = 40
LOG_SHOWN = 60
CHILDREN_SHOWN = 60
"""How much of a story, a log and a list of children a page has: the newest part."""


class StageBar(Struct, frozen=True, kw_only=True):
    """One stage in the strip: passed, current or ahead, with its counts and times."""

    name: str
    place: str
    done: int
    failed: int
    running: int
    total: int | None
    started_at: Moment | None
    took_ms: int | None
    usual_ms: int | None
    """How long this stage usually takes, from recent jobs of the type; null if unknown."""
    words: str
    """"11 of 30", "48 s", "usually 2 min"."""
    path: str = ""
    """The path of its step, if it has recorded exactly one."""


class ItemCell(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item. `path` identifies it in the timeline, in the log and in the list of steps; empty if still to come."""

    state: str
    """"done", "running", "retrying", "failed", "doubt" or "todo"."""
    path: str = ""
    name: str = ""
    tries: int = 1
    started_at: Moment | None = None
    took_ms: int | None = None
    is_kept: bool = False
    """Whether an earlier owner recorded it, so that it wasn't made again."""
    words: str = ""


class Squares(Struct, frozen=True, kw_only=True):
    """Many items as squares: one letter for each square, and how many items a square stands for.

    d done, r running, t trying again, f failed, ? in doubt, . to do. A square shows the worst of its items.
    """

    each: int
    letters: str


class ItemsTab(Struct, frozen=True, kw_only=True):
    """The items of a stage: each as a cell if there are few, otherwise as squares."""

    stage: str
    words: str
    done: int
    failed: int
    running: int
    total: int | None
    usual_ms: int | None
    cells: tuple[ItemCell, ...]
    squares: Squares | None


class LossBox(Struct, frozen=True, kw_only=True):
    """What a loss meant: why it was noticed, what survived, and what was cut."""

    why: str
    kept: str
    cut: tuple[str, ...]


class StoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the history as a sentence, or the end of a stage (then `version` is 0)."""

    version: int
    at: Moment
    clock: str
    sentence: str
    event: str
    after: str
    by: str = ""
    notes: tuple[str, ...] = ()
    loss: LossBox | None = None


class CostLine(Struct, frozen=True, kw_only=True):
    """What a stage cost; `wasted` is the part that failed or was cut off. Both shares are of what the job has spent."""

    stage: str
    spent: dict[str, float]
    wasted: dict[str, float]
    words: str
    share: float
    wasted_share: float


class LogLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the log. `step` is the path of the step that logged it, `name` that step in words."""

    text: str
    level: str = ""
    at: str = ""
    step: str = ""
    name: str = ""


class ChildrenTab(Struct, frozen=True, kw_only=True):
    """The children of a job, the newest first."""

    words: str
    total: int
    is_least: bool
    jobs: tuple[JobLine, ...]


class MadeFrom(Struct, frozen=True, kw_only=True):
    """The run that a rerun or a fork was made from."""

    job: str
    short: str
    how: str
    """"rerun" or "fork"."""
    words: str
    """"A rerun of 4f2a91bc at draw, item 3: the hand has six fingers."."""


class JobPage(Struct, frozen=True, kw_only=True):
    """One job, with everything that its page shows."""

    now: Moment
    title: str
    """For a tab: "11 of 30, The Lighthouse"."""
    job: JobLine
    sentence: str
    why: str
    """The second line: who runs it since when, and which losses it survived."""
    facts: tuple[Fact, ...]
    stages: tuple[StageBar, ...]
    items: tuple[ItemsTab, ...]
    children: ChildrenTab | None
    questions: tuple[QuestionCard, ...]
    review: ReviewCard | None
    story: tuple[StoryEntry, ...]
    story_before: int
    """How many older entries there are: GET …/story."""
    cost: tuple[CostLine, ...]
    spent: dict[str, float]
    wasted: dict[str, float]
    saved: dict[str, float]
    asked: tuple[Fact, ...]
    parameters: tuple[str, ...]
    """The names of the arguments, if the job's code is loaded here."""
    arguments: Value
    result: Value | None
    error: ErrorShown | None
    log: tuple[LogLine, ...]
    undo: str
    made_from: MadeFrom | None
    acts: tuple[Act, ...]


class StoryPage(Struct, frozen=True, kw_only=True):
    """A part of a job's story, the newest first. `next` is the version to continue after."""

    now: Moment
    entries: tuple[StoryEntry, ...]
    next: int | None


class StepLineShown(Struct, frozen=True, kw_only=True):
    """One recorded step, without its result."""

    path: str
    name: str
    state: str
    words: str
    epoch: int
    tries: int
    started_at: Moment
    finished_at: Moment | None
    took_ms: int | None
    error: ErrorShown | None


class StepsPage(Struct, frozen=True, kw_only=True):
    """A page of steps, in the order in which they were first written. `next` is the path to continue after."""

    steps: tuple[StepLineShown, ...]
    next: str | None


class RejectedShown(Struct, frozen=True, kw_only=True):
    """What a person said about a step's earlier result, and that result."""

    feedback: str
    result: Value | None


class StepPage(Struct, frozen=True, kw_only=True):
    """One step with its result and its cost."""

    step: StepLineShown
    result: Value | None
    spent: dict[str, float]
    key: str
    """The key that a provider gets for it (`idempotency_key`)."""
    code: str
    """The fingerprint of the code that made it; empty if none is known."""
    is_effect: bool
    """Whether it has `effect="once"`: it happens again only if a person allows it."""
    rejected: RejectedShown | None
    """What it had recorded before a person wanted it to run again."""
    acts: tuple[Act, ...]


class LogPage(Struct, frozen=True, kw_only=True):
    """The log lines that are kept with a job."""

    lines: tuple[LogLine, ...]


class TimelineBar(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bar: what ran from `at` to `end`, in milliseconds after the timeline's start, in a row and a lane.

    `count` is above 1 if the bar stands for several short steps.
    """

    row: int
    lane: int
    at: int
    end: int
    state: str
    """"done", "running", "failed" or "cut"."""
    path: str = ""
    name: str = ""
    epoch: int = 0
    count: int = 1


class TimelineRow(Struct, frozen=True, kw_only=True):
    """A row of the timeline: a stage, and how many lanes it has."""

    stage: str
    lanes: int


class OwnerBand(Struct, frozen=True, kw_only=True):
    """Who held the job from when to when."""

    worker: str
    epoch: int
    at: int
    end: int | None
    how: str
    """How it ended: "lost", "released", "completed", …; empty while it runs."""


class Gap(Struct, frozen=True, kw_only=True):
    """A time in which nobody worked on the job: after a loss, during a wait or a sleep."""

    kind: str
    """"lost", "waited", "slept", "queued" or "review"."""
    at: int
    end: int | None
    words: str


class Timeline(Struct, frozen=True, kw_only=True):
    """When everything ran. All times are milliseconds after `start`."""

    start: Moment
    now: int
    end: int
    bands: tuple[OwnerBand, ...]
    gaps: tuple[Gap, ...]
    rows: tuple[TimelineRow, ...]
    bars: tuple[TimelineBar, ...]
    is_binned: bool
    """Whether bars stand for several steps, because there are too many."""
    is_cut: bool
    """Whether the newest steps are left out, because the job has too many."""
