"""Shared limits on SQLite where many wait: a claim does a bounded part of the work, and nobody is forgotten."""

from pathlib import Path

import pytest

from holdfast.conformance.given import StoreClock, change
from holdfast.core.errors import Moved
from holdfast.core.model import Ask, Event, Job, Options, Use
from holdfast.core.moves import MOVED, Mark
from holdfast.core.shared_limits import LIMIT
from holdfast.engines.permits import RECHECK_LIMIT
from holdfast.engines.sqlite import SqliteEngine
from holdfast.engines.sqlite.claims import PASS_LIMIT
from tests.support.samples import job

CLOCK = StoreClock(settable=False)


@pytest.fixture
def engine(tmp_path: Path, run):
    engine = SqliteEngine(tmp_path / "jobs.db")
    run(engine.open())
    yield engine
    run(engine.close())


def limited(*keys: str, **fields: object) -> Job:
    return job(CLOCK.now, **{"options": Options(limits=tuple(Use(key) for key in keys))} | fields)


def test_keys_that_nobody_here_serves_keep_no_other_key_from_a_look(engine, run):
    run(engine.put_record(LIMIT + "api", '{"at_once":1}'))
    run(engine.insert([limited(f"api/{n:04}", type="test.foreign") for n in range(2 * RECHECK_LIMIT)]))
    mine = limited("api/last")
    run(engine.insert([mine]))

    looks = [run(engine.claim("w-1", ["default"], 1, ["test.job"])) for _ in range(3)]

    assert [one.id for jobs in looks for one in jobs] == [mine.id]
    new = limited("api/last-but-one")  # all keys before it were looked at, and have room
    run(engine.insert([new]))
    looks = [run(engine.claim("w-1", ["default"], 1, ["test.job"])) for _ in range(3)]
    assert [one.id for jobs in looks for one in jobs] == [new.id]


def test_a_claim_moves_a_few_jobs_and_the_next_one_goes_on(engine, run):
    run(engine.put_record(LIMIT + "account", '{"at_once":2}'))
    run(engine.put_record(LIMIT + "gpu", '{"at_once":1}'))
    run(engine.insert([limited("gpu")]))
    [held] = run(engine.claim("w-1", ["default"], 9))
    both = [limited("account", "gpu") for _ in range(3 * PASS_LIMIT)]
    last = limited("account", priority=-1)
    run(engine.insert([*both, last]))

    looks = [run(engine.claim("w-1", ["default"], 9)) for _ in range(4)]

    assert [len(jobs) for jobs in looks] == [0, 0, 0, 1]
    assert looks[3][0].id == last.id
    [used] = run(engine.usage("gpu"))
    assert (used.held, used.waiting) == (1, len(both))
    run(engine.commit([change(CLOCK, held, Event.COMPLETE)]))
    assert [one.id for one in run(engine.claim("w-1", ["default"], 9))] == [both[0].id]


def test_a_claim_that_is_full_leaves_the_other_keys_to_the_next_one(engine, run):
    run(engine.put_record(LIMIT + "api", '{"at_once":1}'))
    jobs = [limited(f"api/{n:02}") for n in reversed(range(40))]
    run(engine.insert(jobs))

    taken = [one.id for _ in range(10) for one in run(engine.claim("w-1", ["default"], 4))]

    assert taken == [one.id for one in jobs]


def test_a_store_whose_jobs_were_moved_gives_no_permits(engine, run):
    run(engine.put_record(LIMIT + "api", '{"at_once":1}'))
    run(engine.insert([job(CLOCK.now)]))
    [held] = run(engine.claim("w-1", ["default"], 9))
    run(engine.put_record(MOVED, Mark(move="m", away=True, store="memory:").text()))

    with pytest.raises(Moved):
        run(engine.admit([Ask(job=held.id, epoch=held.epoch, path="draw#1", uses=(Use("api"),))]))


def test_a_pruned_job_leaves_no_permit_behind(engine, run):
    """Even if its owner forgot to say that it had some."""
    run(engine.insert([job(CLOCK.now, options=Options(keep_ms=0))]))
    [held] = run(engine.claim("w-1", ["default"], 9))
    run(engine.admit([Ask(job=held.id, epoch=held.epoch, path="draw#1", uses=(Use("api"),))]))
    run(engine.commit([change(CLOCK, held, Event.COMPLETE)]))

    assert run(engine.prune()) == 1

    permits = run(engine._look("look", lambda db: db.execute("select count(*) from holdfast_permit").fetchone()))
    assert permits == (0,)
