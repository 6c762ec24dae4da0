"""Pages as pure data: squares of many items, lanes of a timeline, jobs that ended per minute."""

from msgspec.structs import replace

from holdfast.core.model import Entry, Job, Presence, Running, RunningItem, Spending, State, StepState
from holdfast.core.summaries import StepCounts, StepHead, StepSummary
from holdfast.jobs.status import status_of
from holdfast.jobs.views.pages.items import Progressing, item_tabs
from holdfast.jobs.views.pages.job import CELLS_SHOWN, SQUARES
from holdfast.jobs.views.pages.lines import name_of
from holdfast.jobs.views.pages.samples import Sample, Samples
from holdfast.jobs.views.pages.timeline import BARS, timeline_of

ID = "0192f3a4-5b6c-7d8e-9f01-23456789abcd"
NOW = 1_800_000_000_000


def a_job(**fields) -> Job:
    plain = {"id": ID, "type": "film", "created_at": NOW, "state": State.ACTIVE, "epoch": 1, "worker": "w-1"}
    return Job(**{**plain, **fields})


def progressing(total: int, done: int, heads=None, items=()) -> Progressing:
    job = a_job(claimed_at=NOW)
    summary = StepSummary(job.id, {"draw": StepCounts(done=done)})
    running = Running(job.id, 1, stage="draw", done=done, total=total, items=items)
    status = status_of(job, summary, (), running, NOW)
    return Progressing(job=job, status=status, summary=summary, running=running, heads=heads, now=NOW)


def head(number: int, at: int = NOW, took: int = 10) -> StepHead:
    path = f"draw#{number}"
    return StepHead(path=path, name="draw", state=StepState.DONE, epoch=1, started_at=at, finished_at=at + took)


def test_few_items_are_cells_and_many_are_squares_that_show_the_worst():
    items = (RunningItem("draw#7", NOW - 5, 2),)
    [few] = item_tabs(progressing(10, 3, tuple(map(head, range(3))), items))
    [many] = item_tabs(progressing(10_000, 4_000, None, items))

    assert [cell.state for cell in few.cells] == ["done"] * 3 + ["retrying"] + ["todo"] * 6
    assert many.squares is not None
    assert len(many.squares.letters) <= SQUARES
    assert many.squares.each == 17
    assert many.squares.letters.count("t") == 1
    assert not many.cells
    assert CELLS_SHOWN < 10_000


def test_what_ran_at_once_is_in_lanes_and_too_many_bars_are_binned():
    three = [head(1), head(2, NOW + 5), head(3, NOW + 12)]
    timeline = timeline_of(a_job(), [], three, (), NOW + 100)
    crowd = timeline_of(a_job(), [], [head(n, NOW + 20 * n) for n in range(5_000)], (), NOW + 100_000)

    assert [(bar.lane, bar.at) for bar in timeline.bars] == [(0, 0), (1, 5), (0, 12)]
    assert crowd.is_binned
    assert len(crowd.bars) <= BARS
    assert sum(bar.count for bar in crowd.bars) == 5_000


def test_a_loss_cuts_bars_and_leaves_a_gap():
    def entry(version, at, event, before, after, **more):
        return Entry(job=ID, version=version, at=NOW + at, event=event, before=before, after=after, by="w", **more)

    history = [
        entry(1, 0, "submit", None, State.AVAILABLE, epoch=0),
        entry(2, 10, "claim", State.AVAILABLE, State.ACTIVE, epoch=1),
        entry(3, 500, "lapse", State.ACTIVE, State.AVAILABLE, epoch=1, note={"lost": "w-1", "cut": {"draw#9": 90}}),
        entry(4, 590, "claim", State.AVAILABLE, State.ACTIVE, epoch=2),
    ]
    timeline = timeline_of(a_job(epoch=2), history, [], (), NOW + 1_000)

    [bar] = timeline.bars
    assert (bar.state, bar.at, bar.end) == ("cut", 410, 500)
    assert [(gap.kind, gap.at, gap.end) for gap in timeline.gaps] == [("queued", 0, 10), ("lost", 500, 590)]
    assert [band.how for band in timeline.bands] == ["lost", ""]


def test_jobs_that_ended_are_counted_by_the_minute_and_pruning_takes_none_away():
    samples = Samples()
    minute = 60_000

    def take(at, ended, pruned=0, workers=()):
        counts = {("default", State.COMPLETED): ended}
        samples.take(Sample(now=NOW + at, counts=counts, workers=workers, pruned=pruned))

    take(0, 10)
    take(10_000, 15)
    take(minute, 3, pruned=14)
    gone = Presence("w-1", beat_at=NOW, gone=True)
    take(minute + 1, 3, pruned=14, workers=(gone,))
    found = samples.finished(NOW + minute + 2)

    assert sum(found.ended) == 7
    assert sum(found.lost) == 1
    assert found.since_words.startswith("since ")


def test_money_is_counted_from_the_first_look_on():
    samples = Samples()

    def take(at, usd):
        running = Running(ID, 1, spending=Spending(kept={"usd": usd}))
        samples.take(Sample(now=NOW + at, counts={}, workers=(Presence("w-1", running=(running,)),)))

    take(0, 5_000_000)
    assert samples.money() is None
    take(10_000, 7_500_000)

    assert samples.money().spent == {"usd": 2.5}


def test_a_job_is_named_by_its_meta_its_first_text_its_key_or_its_type():
    job = a_job(args='[3, {"title": "The Lighthouse"}]')

    assert name_of(job) == "The Lighthouse"
    assert name_of(a_job(args='["sea"]', key="k")) == "sea"
    assert name_of(a_job(args="[1]", key="order-42")) == "order-42"
    assert name_of(a_job(args="[1]")) == "film 6789abcd"
    assert name_of(replace(job, options=replace(job.options, meta={"name": "Mine"}))) == "Mine"
