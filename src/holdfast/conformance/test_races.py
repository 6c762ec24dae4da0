"""Races: of concurrent callers one wins, and nothing is done twice or lost.

Each racer has its own thread and loop and, if the store can be shared, its own engine.
"""

from collections.abc import Sequence

from holdfast.conformance.given import (
    SECOND,
    StoreClock,
    applied_to,
    change,
    children,
    claimed,
    current,
    in_state,
    inserted,
    job,
    signal,
    step,
)
from holdfast.conformance.race import RACERS, Lap, run_race, until_raced
from holdfast.core.errors import NotAllowed
from holdfast.core.lifecycle import deliver
from holdfast.core.limits import INBOX_BYTES
from holdfast.core.model import Applied, Conflict, Event, Inserted, Job, Lease, Record, Recorded, State, Wait, WaitKind
from holdfast.engines.contract import Engine

CROWD = 24
"""How many jobs the claimers of one round compete for."""


def winners(laps: Sequence[Lap[list[Applied | Conflict]]]) -> list[Applied]:
    """Return the changes that were applied."""
    return [answer for lap in laps for answers in lap.answers for answer in answers if isinstance(answer, Applied)]


async def test_racing_senders_never_fill_an_inbox_beyond_its_bound(engines: list[Engine], clock: StoreClock) -> None:
    large = "x" * (INBOX_BYTES // 6)
    most = INBOX_BYTES // (len(large) + len("s"))

    async def one_round(number: int) -> list[Lap[list[Applied | Conflict]]]:
        held = await inserted(engines[0], clock)

        async def racer(seat: int, engine: Engine, lap: Lap[list[Applied | Conflict]]) -> None:
            while True:
                (seen,) = await engine.get([held.id])
                assert seen is not None
                try:
                    sent = deliver(seen, "s", large, clock.now, by=f"w-{seat}")
                except NotAllowed:
                    return
                await lap.call(engine.commit([sent]))

        laps = run_race(engines, racer)

        assert len(winners(laps)) == most
        (full,) = await engines[0].get([held.id])
        assert full is not None
        assert len(full.inbox) == most
        return laps

    await until_raced(one_round)


async def test_no_job_goes_to_two_claimers_and_none_is_lost(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[list[Job]]]:
        queues = [f"a-{number}", f"b-{number}"]
        states = (State.AVAILABLE, State.SCHEDULED)
        jobs = [job(clock, queue=queues[n % 2], state=states[n // 2 % 2], run_at=clock.now) for n in range(CROWD)]
        await engines[0].insert(jobs)

        async def racer(seat: int, engine: Engine, lap: Lap[list[Job]]) -> None:
            while await lap.call(engine.claim(f"w-{seat}", queues, 3)):
                pass

        laps = run_race(engines, racer)

        held = [(each.id, f"w-{seat}") for seat, lap in enumerate(laps) for came in lap.answers for each in came]
        assert sorted(id for id, _ in held) == sorted(each.id for each in jobs)
        now = [await current(engines[0], each) for each in jobs]
        assert {(each.id, each.worker) for each in now} == set(held)
        assert {each.epoch for each in now} == {1}
        return laps

    await until_raced(one_round)


async def test_of_completing_cancelling_and_rescuing_one_wins(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[list[Applied | Conflict]]]:
        held = await claimed(engines[0], clock)
        events = (Event.COMPLETE, Event.CANCEL, Event.LAPSE, Event.FAIL)
        decided = [change(clock, held, event, inserts=(job(clock, parent=held.id),)) for event in events]

        async def racer(seat: int, engine: Engine, lap: Lap[list[Applied | Conflict]]) -> None:
            await lap.call(engine.commit([decided[seat]]))

        laps = run_race(engines, racer)

        assert winners(laps) == [Applied(held.version + 1)]
        [won] = [seat for seat, lap in enumerate(laps) if isinstance(lap.answers[0][0], Applied)]
        assert (await current(engines[0], held)).state is decided[won].job.state
        assert len(await engines[0].history(held.id)) == held.version + 1
        new = await engines[0].get([each.inserts[0].id for each in decided])
        assert [found is not None for found in new] == [seat == won for seat in range(len(events))]
        return laps

    await until_raced(one_round)


async def test_of_claiming_and_cancelling_one_wins(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[object]]:
        new = await inserted(engines[0], clock, queue=f"q-{number}")

        async def racer(seat: int, engine: Engine, lap: Lap[object]) -> None:
            if seat % 2:
                await lap.call(engine.claim(f"w-{seat}", [new.queue], 1))
            else:
                await lap.call(engine.commit([change(clock, new, Event.CANCEL)]))

        laps = run_race(engines, racer)

        now = await current(engines[0], new)
        held = sum(bool(lap.answers[0]) for lap in laps[1::2])
        cancelled = sum(isinstance(lap.answers[0], list) and lap.answers[0] == [Applied(2)] for lap in laps[::2])
        assert (held, cancelled) == ((1, 0) if now.state is State.ACTIVE else (0, 1))
        assert now.version == 2
        return laps

    await until_raced(one_round)


async def test_a_signal_and_a_suspension_do_not_miss_one_another(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[list[Applied | Conflict]]]:
        held = await claimed(engines[0], clock)
        waits = (Wait(WaitKind.SIGNAL, "go"),)
        decided = [change(clock, held, Event.SUSPEND, waits=waits), signal(clock, held, "go")]

        async def racer(seat: int, engine: Engine, lap: Lap[list[Applied | Conflict]]) -> None:
            await lap.call(engine.commit([decided[seat]]))

        laps = run_race(engines[:2], racer)

        # One is refused and reads again, so nobody waits for what is already in its inbox.
        assert winners(laps) == [Applied(held.version + 1)]
        now = await current(engines[0], held)
        assert (now.state, len(now.inbox)) in {(State.PENDING, 0), (State.ACTIVE, 1)}
        return laps

    await until_raced(one_round)


async def test_a_key_gives_one_job(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[list[Inserted]]]:
        jobs = [job(clock, key=f"k-{number}", digest="d") for _ in engines]

        async def racer(seat: int, engine: Engine, lap: Lap[list[Inserted]]) -> None:
            await lap.call(engine.insert([jobs[seat]]))

        laps = run_race(engines, racer)

        answers = [lap.answers[0][0] for lap in laps]
        assert [answer.new for answer in answers].count(True) == 1
        assert len({answer.id for answer in answers}) == 1
        found = await engines[0].get([each.id for each in jobs])
        assert [each.id for each in found if each is not None] == [answers[0].id]
        return laps

    await until_raced(one_round)


async def test_an_id_is_inserted_once(engines: list[Engine], clock: StoreClock) -> None:
    parent = await claimed(engines[0], clock)

    async def one_round(number: int) -> list[Lap[list[Inserted]]]:
        new = job(clock, parent=parent.id, group=f"g-{number}")

        async def racer(seat: int, engine: Engine, lap: Lap[list[Inserted]]) -> None:
            await lap.call(engine.insert([new], Lease(parent.id, parent.epoch)))

        laps = run_race(engines, racer)

        assert [lap.answers[0][0].new for lap in laps].count(True) == 1
        assert len(await engines[0].history(new.id)) == 1
        assert await engines[0].missing(parent.id, f"g-{number}") == 1
        return laps

    await until_raced(one_round)


async def test_one_is_the_leader(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[Record | Conflict]]:
        standing = (await engines[0].records("leader"))[:1]
        version = standing[0].version if standing else 0

        async def racer(seat: int, engine: Engine, lap: Lap[Record | Conflict]) -> None:
            await lap.call(engine.put_record("leader", f"w-{seat}", version))

        laps = run_race(engines, racer)

        won = [lap.answers[0] for lap in laps if isinstance(lap.answers[0], Record)]
        assert len(won) == 1
        assert await engines[0].records("leader") == won
        return laps

    await until_raced(one_round)


async def test_every_arrival_is_counted_and_one_is_the_last(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[list[Applied | Conflict]]]:
        parent = await claimed(engines[0], clock)
        held = await children(engines[0], clock, parent, 2 * len(engines))

        async def racer(seat: int, engine: Engine, lap: Lap[list[Applied | Conflict]]) -> None:
            for child in held[seat :: len(engines)]:
                await lap.call(engine.commit([change(clock, child, Event.COMPLETE)]))

        laps = run_race(engines, racer)

        missing = [answer.missing for answer in winners(laps)]
        assert sorted(left for left in missing if left is not None) == list(range(len(held)))
        assert await engines[0].missing(parent.id, "g") == 0
        return laps

    await until_raced(one_round)


async def test_the_first_record_of_a_step_stands(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[list[Recorded | Conflict]]]:
        held = await claimed(engines[0], clock)

        async def racer(seat: int, engine: Engine, lap: Lap[list[Recorded | Conflict]]) -> None:
            await lap.call(engine.record([step(held, "a", result=str(seat))]))

        laps = run_race(engines, racer)

        answers = [lap.answers[0][0] for lap in laps]
        recorded = [answer for answer in answers if isinstance(answer, Recorded)]
        assert [answer.first for answer in recorded].count(True) == 1
        assert len(recorded) == len(engines)
        assert await engines[0].steps(held.id) == [recorded[0].step]
        assert {answer.step for answer in recorded} == {recorded[0].step}
        return laps

    await until_raced(one_round)


async def test_a_step_and_the_loss_of_the_lease_do_not_both_hold(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[object]]:
        held = await claimed(engines[0], clock)

        async def racer(seat: int, engine: Engine, lap: Lap[object]) -> None:
            if seat:
                await lap.call(engine.record([step(held, f"step-{seat}")]))
            else:
                await lap.call(engine.commit([change(clock, held, Event.CANCEL)]))

        laps = run_race(engines, racer)

        answers = [lap.answers[0] for lap in laps[1:]]
        recorded = [answer[0] for answer in answers if isinstance(answer, list) and isinstance(answer[0], Recorded)]
        kept = await engines[0].steps(held.id)
        assert sorted(each.path for each in kept) == sorted(each.step.path for each in recorded)
        return laps

    await until_raced(one_round)


async def test_counts_are_right_after_a_crowd(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[object]]:
        old = [await in_state(engines[0], clock, State.REVIEW, queue=f"q-{number}-{seat}") for seat in range(RACERS)]

        async def racer(seat: int, engine: Engine, lap: Lap[object]) -> None:
            await lap.call(engine.commit([change(clock, old[seat], Event.REPLAY)]))
            await lap.call(engine.claim(f"w-{seat}", [f"q-{number}-{seat}"], 1))
            await lap.call(engine.insert([job(clock, queue=f"q-{number}-0", run_at=clock.now + SECOND)]))

        laps = run_race(engines, racer)

        counts = {name: n for name, n in (await engines[0].count()).items() if name[0].startswith(f"q-{number}-")}
        wanted = {(f"q-{number}-{seat}", State.ACTIVE): 1 for seat in range(RACERS)}
        assert counts == wanted | {(f"q-{number}-0", State.AVAILABLE): RACERS}
        return laps

    await until_raced(one_round)


async def test_an_owner_keeps_every_signal_that_came(engines: list[Engine], clock: StoreClock) -> None:
    async def one_round(number: int) -> list[Lap[list[Applied | Conflict]]]:
        held = await claimed(engines[0], clock)
        seen = await applied_to(engines[0], signal(clock, held, value="0"))

        async def racer(seat: int, engine: Engine, lap: Lap[list[Applied | Conflict]]) -> None:
            decided = signal(clock, seen, value=str(seat)) if seat else change(clock, held, Event.COMPLETE)
            await lap.call(engine.commit([decided]))

        laps = run_race(engines, racer)

        values = {got.value for got in (await current(engines[0], held)).inbox}
        delivered = {str(seat) for seat, lap in enumerate(laps) if seat and isinstance(lap.answers[0][0], Applied)}
        assert values == {"0"} | delivered
        return laps

    await until_raced(one_round)
