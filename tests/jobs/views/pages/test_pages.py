"""Pages as pure data: squares of many items, lanes of a timeline, jobs that ended per minute."""

import json

import pytest
from msgspec.structs import replace

from holdfast.core.keys import digest
from holdfast.core.model import Entry, Job, Presence, Running, RunningItem, Spending, State, Step, StepState
from holdfast.core.places import PLACES_PATH, places_in, places_text
from holdfast.core.summaries import StepCounts, StepHead, StepSummary
from holdfast.jobs.limit_status import LimitWait
from holdfast.jobs.status import status_of
from holdfast.jobs.views.pages.items import Progressing, item_tabs
from holdfast.jobs.views.pages.job import CELLS_SHOWN, SQUARES
from holdfast.jobs.views.pages.job_page import sentence_for, why_of
from holdfast.jobs.views.pages.lines import as_sentence, name_of
from holdfast.jobs.views.pages.log import log_lines_shown
from holdfast.jobs.views.pages.losses import LostWorker
from holdfast.jobs.views.pages.samples import Sample, Samples
from holdfast.jobs.views.pages.story import cut_steps, story_entries, why_line
from holdfast.jobs.views.pages.timeline import BARS, timeline_of
from holdfast.jobs.views.step_names import name_steps

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


def a_step(path: str, result: str) -> Step:
    return Step(
        job=ID, epoch=1, path=path, name=path, state=StepState.STARTED, started_at=NOW, result=json.dumps(result)
    )


def head(number: int, at: int = NOW, took: int = 10) -> StepHead:
    path = f"draw#{number}"
    return StepHead(path=path, name="draw", state=StepState.DONE, epoch=1, started_at=at, finished_at=at + took)


def test_few_items_are_cells_and_many_are_squares_that_show_the_worst():
    items = (RunningItem("draw#7", NOW + 5, 2),)
    [few] = item_tabs(progressing(10, 3, tuple(map(head, range(3))), items))
    [many] = item_tabs(progressing(10_000, 4_000, None, items))

    assert [cell.state for cell in few.cells] == ["done"] * 3 + ["retrying"] + ["todo"] * 6
    assert many.squares is not None
    assert len(many.squares.letters) <= SQUARES
    assert many.squares.each == 17
    assert many.squares.letters.count("t") == 1
    assert not many.cells
    assert CELLS_SHOWN < 10_000


def test_an_item_keeps_its_place_whichever_ends_first_and_when_another_worker_makes_it_again():
    """Items 1 to 4 begin one after the other; 3 ends first, 2 is cut by a loss and made again at the end."""
    paths = [f"draw#{digest(f'[{n}]')[:16]}" for n in range(1, 5)]

    def recorded(n, at):
        return replace(head(n, NOW + at), path=paths[n - 1])

    def shown(heads, *items, begun=()):
        one = replace(progressing(6, len(heads), heads, items), begun=dict(begun))
        [tab] = item_tabs(one)
        return [cell.name.rpartition(" ")[2] or cell.state for cell in tab.cells]

    def runs(n, at):
        return RunningItem(paths[n - 1], NOW + at)

    done_first = shown((recorded(3, 2),), runs(1, 0), runs(2, 1), runs(4, 3))
    cut = [(paths[1], NOW + 1)]
    again = shown((recorded(3, 2), recorded(1, 0)), runs(4, 900), runs(2, 900), begun=[*cut, (paths[3], NOW + 3)])
    at_once = shown((recorded(4, 0), recorded(2, 0)), runs(3, 0), runs(1, 0))

    assert done_first == again == at_once == ["1", "2", "3", "4", "todo", "todo"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("generating clips, 11 of 30", "Generating clips, 11 of 30."),
        ("draw: 30 items in 12 min", "Draw: 30 items in 12 min."),
        ("30 jobs in review", "30 jobs in review."),
        ("completed just now", "Completed just now."),
        ("send_invoice#1187 may have happened", "send_invoice#1187 may have happened."),
        ("shop.refused: no money", "shop.refused: no money."),
        ("drawImage, stage 2 of 3", "drawImage, stage 2 of 3."),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_letter_unless_it_begins_with_a_name(words, sentence):
    assert as_sentence(words) == sentence


@pytest.mark.parametrize(
    ("stage", "shown"),
    [("generating_clips", "Generating clips, 3 of 7."), ("make.clips_v2", "make.clips_v2, 3 of 7.")],
)
def test_a_stage_is_shown_as_words_only_if_its_name_is_made_of_words(stage, shown):
    one = progressing(7, 3)

    assert sentence_for(replace(one, status=replace(one.status, stage=stage)), []) == shown


def test_a_job_of_which_one_step_waits_for_a_limit_is_said_to_run():
    items = tuple(RunningItem(f"draw#{n}", NOW) for n in range(4))
    one = progressing(30, 11, (), items)
    waiting = replace(one, status=replace(one.status, limited=LimitWait(key="provider", steps=1)))
    all_wait = replace(one, status=replace(one.status, limited=LimitWait(key="provider", steps=4)))

    assert sentence_for(waiting, []).startswith("Draw, 11 of 30")
    assert "limit" not in sentence_for(waiting, [])
    assert why_of(waiting, []).endswith("Waiting for limit provider.")
    assert "waiting for limit provider" in sentence_for(all_wait, [])
    assert "limit" not in why_of(all_wait, [])


def test_the_order_of_the_calls_is_kept_where_it_is_recorded():
    heads = tuple(replace(head(n, NOW + n), path=f"draw#{digest(f'[{n}]')[:16]}") for n in (1, 2, 3))
    places = places_in([a_step(PLACES_PATH, places_text([heads[n].path for n in (2, 0, 1)], [h.path for h in heads]))])

    [tab] = item_tabs(replace(progressing(3, 3, heads), places=places))

    assert [cell.name for cell in tab.cells] == ["draw 3", "draw 1", "draw 2"]


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


def lost_history(path: str, ran_ms: int, silent_ms: int):
    def entry(version, at, event, before, after, **more):
        return Entry(job=ID, version=version, at=NOW + at, event=event, before=before, after=after, by="w-2", **more)

    note = {
        "lost": "w-1",
        "why": "it died",
        "survived": "3 recorded steps",
        "cut": {path: ran_ms},
        "silent_ms": silent_ms,
    }
    return [
        entry(1, 0, "submit", None, State.AVAILABLE, epoch=0),
        entry(2, 10, "claim", State.AVAILABLE, State.ACTIVE, epoch=1),
        entry(3, 5_000, "lapse", State.ACTIVE, State.AVAILABLE, epoch=1, note=note),
        entry(4, 5_003, "claim", State.AVAILABLE, State.ACTIVE, epoch=2),
    ]


def test_a_loss_counts_from_the_last_heartbeat_not_from_when_it_was_noticed():
    history = lost_history("draw#9", ran_ms=4_000, silent_ms=1_500)
    timeline = timeline_of(a_job(epoch=2), history, [], (), NOW + 6_000)

    [bar] = timeline.bars
    assert (bar.at, bar.end) == (1_000, 3_500)
    assert timeline.bands[0].end == 3_500
    assert timeline.gaps[-1].words == "nobody worked on it for 1 s"
    assert (timeline.gaps[-1].at, timeline.gaps[-1].end) == (3_500, 5_003)
    assert "w-2 continued 1 s later" in why_line(a_job(epoch=2), history, NOW + 6_000)


def test_a_worker_was_there_as_long_as_it_recorded_steps_though_its_last_heartbeat_is_older():
    """It began draw#9 at 1,000 and recorded draw#8 at 4,200; its last heartbeat was at 3,500, its end seen at 5,000."""
    history = lost_history("draw#9", ran_ms=4_000, silent_ms=1_500)
    recorded = [replace(head(8, NOW + 900, 3_300), epoch=1)]
    timeline = timeline_of(a_job(epoch=2), history, recorded, (), NOW + 6_000)

    assert [(bar.state, bar.at, bar.end) for bar in timeline.bars] == [("done", 900, 4_200), ("cut", 1_000, 4_200)]
    assert timeline.bands[0].end == 4_200
    assert (timeline.gaps[-1].at, timeline.gaps[-1].words) == (4_200, "nobody worked on it for 803 ms")
    assert "w-2 continued 803 ms later" in why_line(a_job(epoch=2), history, NOW + 6_000, recorded)


def test_what_a_loss_cut_has_names_that_people_read():
    [path] = [f"draw#{digest('[4]')[:16]}"]
    history, job = lost_history(path, ran_ms=2_000, silent_ms=0), a_job(epoch=2, args='["The Lighthouse"]')
    [bar] = timeline_of(job, history, [], (), NOW + 6_000).bars
    names = name_steps(job, cut_steps(history))
    loss = story_entries(history, NOW, names)[2].loss

    assert bar.name == "draw 4"
    assert loss is not None
    assert loss.cut == ("draw 4, after 2 s",)


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
    samples.meet((gone,), (LostWorker(presence=gone, at=NOW + minute),), NOW + minute + 1)
    found = samples.finished(NOW + minute + 2)

    assert sum(found.ended) == 7
    assert sum(found.lost) == 1
    assert found.since_words.startswith("since ")


def test_jobs_that_ended_are_counted_by_how_they_ended():
    samples = Samples()

    def take(at, completed, cancelled, discarded, pruned=0):
        counts = {
            ("default", State.COMPLETED): completed,
            ("default", State.CANCELLED): cancelled,
            ("video", State.CANCELLED): cancelled,
            ("default", State.DISCARDED): discarded,
            ("default", State.REVIEW): at,
        }
        samples.take(Sample(now=NOW + at, counts=counts, workers=(), pruned=pruned))

    take(0, 5, 1, 1)
    take(10_000, 8, 2, 2)
    take(60_000, 0, 0, 0, pruned=16)  # everything was pruned, with two more jobs that had ended meanwhile
    take(70_000, 1, 0, 1, pruned=16)
    found = samples.finished(NOW + 70_001)

    assert sum(found.ended) == 10
    assert (sum(found.cancelled), sum(found.discarded)) == (2, 2)
    assert found.words.endswith("UTC, 2 cancelled, 2 discarded")


def test_a_lost_worker_is_remembered_for_an_hour_unless_it_works_on():
    samples, minute = Samples(), 60_000
    lost = [LostWorker(presence=Presence(f"w-{n}"), at=NOW + n * minute, jobs=(ID,)) for n in range(3)]

    samples.meet((), lost, NOW)
    samples.meet((), lost[:1], NOW)
    assert [(one.presence.worker, one.jobs) for one in samples.lost(NOW)] == [(f"w-{n}", (ID,)) for n in (2, 1, 0)]
    samples.meet((Presence("w-1", beat_at=NOW),), (), NOW)

    assert [one.presence.worker for one in samples.lost(NOW)] == ["w-2", "w-0"]
    assert [one.presence.worker for one in samples.lost(NOW + 61 * minute)] == ["w-2"]
    assert samples.lost(NOW + 62 * minute) == []


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


def test_a_log_line_names_its_step_as_the_cell_of_its_item_does():
    [tab] = item_tabs(progressing(3, 1, (head(1),)))
    path = tab.cells[0].path

    with_cell, without, between, own, odd = log_lines_shown(
        [
            f"2026-11-19T14:11:44Z [{path}] INFO film: drawn",
            "2026-11-19T14:11:45Z [cut#a, b/trim%5D it#c#2] WARNING film: [x] two\nlines",
            "2026-11-19T14:11:46Z ERROR film: between steps",
            "keeps its slot while it waits: [a] B c",
            "2026-11-19T14:11:46Z [cut#a] Level 25 film: said",
        ],
        {path: tab.cells[0].name},
    )

    assert (with_cell.step, with_cell.name, with_cell.text) == (path, tab.cells[0].name, "film: drawn")
    assert (without.step, without.name, without.level) == ("cut#a, b/trim%5D it#c#2", "trim] it", "warning")
    assert "[x] two" in without.text
    assert (between.step, between.name, between.at, between.level) == ("", "", "2026-11-19T14:11:46Z", "error")
    assert (own.step, own.text) == ("", "keeps its slot while it waits: [a] B c")
    assert odd.text.endswith("Level 25 film: said")
