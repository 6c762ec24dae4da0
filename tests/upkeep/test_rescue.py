"""Rescue and upkeep, on the memory engine with a clock that is moved by hand."""

import asyncio
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import HOUR, SECOND, StoreClock, job
from holdfast.core.errors import StoreLost
from holdfast.core.keys import derived_id
from holdfast.core.lifecycle import RECOVERY_LIMIT
from holdfast.core.model import Event, Options, Presence, Retry, Running, RunningItem, Spending, State, Step, StepState
from holdfast.core.outcome import ONCE
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs.service import Jobs
from holdfast.telemetry.counters import Counters
from holdfast.telemetry.metrics import SPEND
from holdfast.upkeep import rescue
from holdfast.upkeep.keeper import LEADER, Keeper
from holdfast.upkeep.rescue import Rescue
from tests.support.given import until

LEASE = 15 * SECOND


class Store:
    """A store, a clock, and small words for what happens in it. All of it runs at once: memory never waits."""

    def __init__(self):
        self.clock = StoreClock(settable=True)
        self.engine = MemoryEngine(self.clock)
        self.rescue = Rescue(self.engine, lease_seconds=LEASE / 1_000)
        self.runner = asyncio.Runner()

    def do(self, work):
        return self.runner.run(work)

    def claimed(self, worker="w-1", **fields):
        self.do(self.engine.insert([job(self.clock, **fields)]))
        (taken,) = self.do(self.engine.claim(worker, ["default"], 1))
        return taken

    def beat(self, worker="w-1", *running, **fields):
        self.do(self.engine.beat(Presence(worker, running=running, **fields)))

    def dead(self):
        return self.do(self.rescue.rescue_dead("w-2"))

    def seen(self, **fields):
        """A look at the workers, as an engine marks them that saw more of them."""
        look = self.do(self.rescue.snapshots.take())
        return replace(look, present={name: replace(one, **fields) for name, one in look.present.items()})

    def get(self, one):
        return self.do(self.engine.get([one.id]))[0]

    def record(self, one, path):
        done = Step(job=one.id, epoch=one.epoch, path=path, name=path, state=StepState.DONE, started_at=0)
        self.do(self.engine.record([done]))

    def last(self, one):
        return self.do(self.engine.history(one.id))[-1]


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.runner.close()


def test_a_worker_that_is_silent_for_longer_than_a_lease_loses_its_jobs_and_the_history_tells_the_story(store):
    one = store.claimed()
    store.beat("w-1", Running(one.id, one.epoch, stage="draw"))
    store.record(one, "draw#1")
    store.dead()

    store.clock.advance(LEASE - 1)
    assert store.dead() == []
    store.clock.advance(2)
    assert [lost.id for lost in store.dead()] == [one.id]

    assert store.get(one).state is State.AVAILABLE
    entry = store.last(one)
    assert (entry.event, entry.by) == (Event.LAPSE, "w-2")
    assert entry.note == {
        "lost": "w-1",
        "why": "no heartbeat for 15 s",
        "survived": "1 recorded step",
        "stage": "draw",
        "silent_ms": LEASE + 1,
    }


def test_money_that_a_dead_worker_had_under_way_is_counted_as_wasted_by_whoever_takes_its_job(store):
    counters = Counters()
    store.engine.observe(counters)
    one = store.claimed()
    spending = Spending(kept={"usd": 4_000_000}, in_flight={"usd": 2_000_000}, loose={"usd": 500_000})
    store.beat("w-1", Running(one.id, one.epoch, stage="draw", spending=spending))
    store.dead()
    store.clock.advance(LEASE - 1)
    store.dead()
    store.clock.advance(2)
    assert [lost.id for lost in store.dead()] == [one.id]

    told = [line for line in counters.lines() if line.startswith(f"{SPEND.name}{{")]
    assert told == [f'{SPEND.name}{{type="test.job",queue="default",kind="wasted"}} 2.5']


def test_the_jobs_of_a_dead_worker_are_rescued_in_bounded_rounds(store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rescue, "RESCUED_AT_ONCE", 2)
    held = [store.claimed() for _ in range(5)]
    store.beat("w-1")
    store.dead()
    store.clock.advance(LEASE - 1)
    store.dead()
    store.clock.advance(2)

    assert [len(store.dead()) for _ in range(4)] == [2, 2, 1, 0]
    assert {store.get(one).state for one in held} == {State.AVAILABLE}


def test_jobs_that_overran_are_failed_in_bounded_rounds(store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rescue, "RESCUED_AT_ONCE", 2)
    for _ in range(3):
        store.claimed(options=Options(timeout_ms=SECOND))
    store.clock.advance(HOUR)

    assert [len(store.do(store.rescue.fail_overrun("w-2"))) for _ in range(3)] == [2, 1, 0]


def test_who_was_asleep_or_cut_off_judges_nobody_until_the_living_had_time_to_beat(store):
    one, other = store.claimed("w-1"), store.claimed("w-3")
    store.beat("w-1")
    store.beat("w-3")
    store.dead()
    store.clock.advance(HOUR)
    assert store.dead() == []
    store.clock.advance(SECOND)
    assert store.dead() == []
    store.beat("w-3")
    store.clock.advance(LEASE // 2)
    assert [lost.id for lost in store.dead()] == [one.id]
    assert store.get(other).state is State.ACTIVE


def test_a_job_that_kills_its_workers_goes_to_a_person(store):
    one = store.claimed()
    for lost in range(RECOVERY_LIMIT + 1):
        held = store.get(one)
        assert held.state is State.ACTIVE, lost
        store.beat("w-1")
        store.dead()
        store.clock.advance(LEASE - 1)
        store.dead()
        store.clock.advance(2)
        store.dead()
        store.clock.advance(HOUR)
        store.do(store.engine.claim("w-1", ["default"], 1))
    ended = store.get(one)
    assert ended.state is State.REVIEW
    assert ended.error.type == "WorkersLost"
    assert "4 workers in a row were lost while they ran this job: no heartbeat for" in ended.error.message
    assert "run such a step with isolate='process'" in ended.error.message
    hints = ["hint" in entry.note for entry in store.do(store.engine.history(one.id)) if "lost" in entry.note]
    assert hints == [False, True, True, True], "one loss says nothing about the job"


def test_progress_between_two_losses_starts_the_row_anew(store):
    one = store.claimed()
    for lost in range(RECOVERY_LIMIT + 3):
        held = store.get(one)
        store.record(held, f"draw#{lost}")
        store.beat("w-1")
        store.dead()
        store.clock.advance(LEASE - 1)
        store.dead()
        store.clock.advance(2)
        store.dead()
        assert store.get(one).recoveries == 1
        store.clock.advance(HOUR)
        store.do(store.engine.claim("w-1", ["default"], 1))
    assert store.get(one).state is State.ACTIVE


@pytest.mark.parametrize("path", ["~wait/approved", "~wait/sleep:1 h#", "~child/one"])
def test_a_wait_that_is_new_or_answered_is_progress_too(store, path):
    one = store.claimed()
    for lost in range(RECOVERY_LIMIT + 3):
        store.record(store.get(one), f"{path}{lost}")
        assert loses(store, one) is State.AVAILABLE
        assert store.get(one).recoveries == 1
        store.clock.advance(HOUR)
        store.do(store.engine.claim("w-1", ["default"], 1))


@pytest.mark.parametrize("path", ["~log", "~args/draw#"])
def test_a_line_of_log_is_no_progress(store, path):
    one = store.claimed()
    for lost in range(RECOVERY_LIMIT):
        store.record(store.get(one), f"{path}{lost}")
        assert loses(store, one) is State.AVAILABLE
        store.clock.advance(HOUR)
        store.do(store.engine.claim("w-1", ["default"], 1))
    assert loses(store, one) is State.REVIEW


def loses(store, one):
    """Its worker falls silent, and it is rescued; what becomes of it."""
    store.beat("w-1")
    store.dead()
    store.clock.advance(LEASE - 1)
    store.dead()
    store.clock.advance(2)
    store.dead()
    return store.get(one).state


def test_a_stale_stage_is_recovered_though_its_worker_lives_and_the_history_says_what_was_seen(store):
    one, other = store.claimed(), store.claimed()
    store.beat(
        "w-1",
        Running(one.id, one.epoch, stage="draw", silent_ms=100, stale_after_ms=5_000),
        Running(other.id, other.epoch, stage="draw"),
    )
    assert store.do(store.rescue.rescue_stale("w-2")) == []
    store.clock.advance(5_000)
    (stale,) = store.do(store.rescue.rescue_stale("w-2"))
    assert stale.id == one.id
    entry = store.last(one)
    assert (entry.event, entry.note["stage"]) == (Event.LAPSE, "draw")
    assert entry.note["why"] == "stage draw showed no progress for 5.1 s, longer than 5 s; its worker is alive"
    assert store.get(other).state is State.ACTIVE


def test_a_stale_word_about_an_older_lease_touches_nothing(store):
    one = store.claimed()
    store.beat("w-1", Running(one.id, one.epoch - 1, stage="draw", silent_ms=10**6, stale_after_ms=1))
    assert store.do(store.rescue.rescue_stale("w-2")) == []


def test_a_job_whose_worker_left_no_trace_is_rescued_after_a_lease(store):
    one = store.claimed()
    store.clock.advance(10 * LEASE)  # it may have beaten until now
    for _ in range(4):
        assert store.do(store.rescue.rescue_orphans("w-2")) == []
        store.clock.advance(LEASE // 3)
    assert [lost.id for lost in store.do(store.rescue.rescue_orphans("w-2"))] == [one.id]
    assert store.last(one).note["why"] == "its worker has no status in the store"


def test_no_job_is_taken_from_a_worker_whose_trace_was_removed_and_came_back(store):
    one = store.claimed()
    for is_there in (False, False, True, False, False, True) * 3:
        store.beat("w-1", leaving=not is_there)
        assert store.do(store.rescue.rescue_orphans("w-2")) == []
        store.clock.advance(LEASE // 3)
    assert store.get(one).state is State.ACTIVE


def test_who_slept_does_not_take_a_missed_worker_for_lost_until_it_had_time_to_come_back(store):
    one = store.claimed()
    assert store.do(store.rescue.rescue_orphans("w-2")) == []
    store.clock.advance(10 * LEASE)
    assert store.do(store.rescue.rescue_orphans("w-2")) == []
    store.clock.advance(LEASE // 2)
    assert [lost.id for lost in store.do(store.rescue.rescue_orphans("w-2"))] == [one.id]


@pytest.mark.parametrize(
    ("retries", "event", "state"), [(1, Event.OVERRUN, State.RETRYABLE), (0, Event.ABANDON, State.REVIEW)]
)
def test_a_timeout_that_its_owner_did_not_heed_is_a_failure(store, retries, event, state):
    one = store.claimed(options=Options(timeout_ms=1_000, retry=Retry(retries=retries)))
    store.clock.advance(5_000)
    assert store.do(store.rescue.fail_overrun("w-2")) == []
    store.clock.advance(1_001)
    assert store.do(store.rescue.fail_overrun("w-2")) != []
    ended = store.get(one)
    assert ended.state is state
    assert ended.error.message == "the job took longer than its timeout of 1 s"
    assert store.last(one).event == event


@pytest.mark.parametrize("retries", [0, 3])
def test_an_effect_in_doubt_needs_a_person_when_its_job_overran_its_timeout(store, retries):
    """The owner did nothing: nobody knows how far the effect has come, and another try would repeat it."""
    one = store.claimed(options=Options(timeout_ms=1_000, retry=Retry(retries=retries)))
    begun = Step(
        job=one.id, epoch=one.epoch, path="pay#1", name="pay", state=StepState.STARTED, result=ONCE, started_at=0
    )
    store.do(store.engine.record([begun]))
    store.clock.advance(10 * SECOND)
    assert store.do(store.rescue.fail_overrun("w-2")) != []
    ended = store.get(one)
    assert ended.state is State.REVIEW
    assert ended.error.type == "EffectInDoubt"
    assert "pay#1" in ended.error.message
    assert "longer than its timeout" in ended.error.message
    assert store.last(one).note["in_doubt"] == ["pay#1"]


# The keeper.


def keeper(store, worker="w-2"):
    return Keeper(store.engine, worker, lease_seconds=15, look_seconds=1, upkeep_seconds=1)


def lead(store, one):
    async def ask():
        look = await one._rescue.snapshots.take()
        await one._rescue.rescue_dead(one._worker, look)
        return await one.lead(look)

    return store.do(ask())


def test_one_leads_and_another_takes_over_as_soon_as_it_is_gone(store):
    first, second = keeper(store, "w-1"), keeper(store, "w-2")
    store.beat("w-1")
    store.beat("w-2")
    assert lead(store, first)
    assert lead(store, first)
    assert not lead(store, second)
    store.beat("w-1", leaving=True)
    assert lead(store, second)
    assert not lead(store, first)


def test_a_leader_that_is_silent_for_longer_than_a_lease_is_replaced(store):
    first, second = keeper(store, "w-1"), keeper(store, "w-2")
    store.beat("w-1")
    store.beat("w-2")
    assert lead(store, first)
    for _ in range(16):
        assert not lead(store, second)
        store.clock.advance(SECOND - 1)
        store.beat("w-2")
    store.clock.advance(SECOND)
    assert lead(store, second)
    assert not lead(store, first)


def test_upkeep_expires_and_prunes(store):
    async def given():
        now = store.clock.now
        late = job(store.clock, expires_at=now + 1_000)
        old = job(store.clock, options=Options(keep_ms=1_000))
        await store.engine.insert([late, old])
        return late, old

    late, old = store.do(given())
    one = keeper(store)
    store.do(one._jobs.cancel(old.id))
    store.clock.advance(1_001)
    store.do(one.tidy())
    assert store.get(late).state is State.DISCARDED
    assert store.get(old) is None


def test_a_resigned_leader_leaves_no_record(store):
    one = keeper(store)
    store.beat("w-2")
    assert lead(store, one)
    store.do(one._resign())
    assert [record.name for record in store.do(store.engine.records(LEADER))] == []


def test_after_a_store_was_lost_a_keeper_that_stops_says_nothing_more(store, caplog):
    """The worker beside it has said so; there is no lead that could be given up."""

    class Lost:
        def __init__(self):
            self.is_lost = False

        def __getattr__(self, name):
            if self.is_lost:
                raise StoreLost("the store is another one")
            return getattr(store.engine, name)

    async def live():
        engine = Lost()
        await store.engine.beat(Presence("w-2"))
        one = Keeper(engine, "w-2", lease_seconds=15, look_seconds=60, upkeep_seconds=60)  # type: ignore[arg-type]
        one.start()
        await until(lambda: store.engine.records(LEADER))
        engine.is_lost = True  # between two looks: the next it asks for is to give up the lead
        await one.stop()

    store.do(live())
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_presence_that_an_engine_saw_die_is_dead_at_once(store):
    one = store.claimed()
    store.beat("w-1")

    seen = store.seen(gone=True, pid=7, host="h")
    assert [lost.id for lost in store.do(store.rescue.rescue_dead("w-2", seen))] == [one.id]
    assert store.last(one).note["why"] == "process 7 on h ended without notice; last heartbeat 0 ms ago"


def test_the_undo_of_a_cancelled_job_begins_when_its_owner_is_dead_and_not_before(store):
    one = store.claimed()
    store.beat("w-1", Running(one.id, one.epoch))
    store.do(Jobs(store.engine).cancel(one.id))
    undo = derived_id(one.id, "undo")
    store.dead()

    store.clock.advance(LEASE - SECOND)
    store.dead()
    (waiting,) = store.do(store.engine.get([undo]))
    store.clock.advance(2 * SECOND)
    store.dead()
    (ready,) = store.do(store.engine.get([undo]))

    assert (waiting.state, ready.state) == (State.PENDING, State.AVAILABLE)
    entry = store.do(store.engine.history(undo))[-1]
    assert (entry.event, entry.by, entry.note["lost"]) == ("activate", "w-2", "w-1")


def test_the_undo_of_a_living_owner_waits_whoever_else_is_dead(store):
    one = store.claimed("w-1")
    store.claimed("w-3")
    store.beat("w-3")
    store.dead()
    store.clock.advance(LEASE - SECOND)
    store.dead()
    store.clock.advance(2 * SECOND)
    store.beat("w-1", Running(one.id, one.epoch))
    store.do(Jobs(store.engine).cancel(one.id))

    assert [job.worker for job in store.dead()] == ["w-3"]
    (undo,) = store.do(store.engine.get([derived_id(one.id, "undo")]))
    assert undo.state is State.PENDING


# The store was away.


def lose(store, one, **seen):
    """Let the worker of a job be silent for longer than a lease, as an engine marks it that saw `seen`."""
    store.beat("w-1", Running(one.id, one.epoch))
    store.dead()
    store.clock.advance(LEASE - 1)
    store.dead()
    store.clock.advance(2)

    assert [lost.id for lost in store.do(store.rescue.rescue_dead("w-2", store.seen(**seen)))] == [one.id]


def take(store):
    store.do(store.engine.claim("w-1", ["default"], 1))


def test_a_lapse_because_the_store_was_away_is_no_recovery_however_often(store):
    one = store.claimed()
    for _ in range(3 * RECOVERY_LIMIT):
        lose(store, one, store_away=True)
        lapsed = store.get(one)
        assert (lapsed.state, lapsed.recoveries, lapsed.run_at) == (State.AVAILABLE, 0, one.run_at)
        entry = store.last(one)
        assert (entry.event, entry.note["lost"]) == (Event.LAPSE, "w-1")
        assert entry.note["excused"] == "the store was unreachable, so this doesn't count as a recovery"
        take(store)
    lose(store, one)
    assert store.get(one).recoveries == 1
    assert "excused" not in store.last(one).note


def test_an_excused_lapse_neither_adds_to_the_row_of_recoveries_nor_hides_what_was_recorded(store):
    one = store.claimed()
    lose(store, one)
    take(store)
    store.record(store.get(one), "draw#1")
    lose(store, one, store_away=True)
    assert store.get(one).recoveries == 1
    take(store)
    lose(store, one)
    assert store.get(one).recoveries == 1, "a step was recorded since the last recovery"


def test_after_a_full_row_of_recoveries_an_excused_lapse_still_sends_nobody_to_review(store):
    one = store.claimed()
    for _ in range(RECOVERY_LIMIT):
        lose(store, one)
        store.clock.advance(HOUR)
        take(store)
    lose(store, one, store_away=True)
    assert (store.get(one).state, store.get(one).recoveries) == (State.AVAILABLE, RECOVERY_LIMIT)


def test_an_effect_in_doubt_needs_a_person_though_the_store_was_away(store):
    one = store.claimed()
    begun = Step(
        job=one.id, epoch=one.epoch, path="pay#1", name="pay", state=StepState.STARTED, result=ONCE, started_at=0
    )
    store.do(store.engine.record([begun]))
    lose(store, one, store_away=True)
    assert store.get(one).state is State.REVIEW


def test_a_stage_is_not_stale_by_silence_that_is_the_stores(store):
    one = store.claimed()
    store.beat("w-1", Running(one.id, one.epoch, stage="draw", silent_ms=0, stale_after_ms=5_000))
    store.clock.advance(10 * SECOND)
    assert store.do(store.rescue.rescue_stale("w-2", store.seen(store_away=True))) == []
    assert store.do(store.rescue.rescue_stale("w-2", store.seen())) != []


def test_the_note_of_a_loss_says_which_steps_it_cut_off(store):
    one = store.claimed()
    store.record(one, "draw#1")
    now = store.clock.now
    items = (RunningItem("draw#1", now), RunningItem("draw#2", now), RunningItem("draw#3", now + SECOND, 2))
    store.beat("w-1", Running(one.id, one.epoch, stage="draw", items=items))
    store.dead()
    store.clock.advance(LEASE - 1)
    assert not store.dead()
    store.clock.advance(2)
    assert store.dead()

    cut = store.last(one).note["cut"]
    assert cut.keys() == {"draw#2", "draw#3"}
    assert cut["draw#2"] - cut["draw#3"] == SECOND
