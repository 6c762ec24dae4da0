"""Live views: one reader for all followers, each entry once, the store away, a token revoked."""

import asyncio
import json

from holdfast.core.errors import NotFound, StoreBusy
from holdfast.server.api.events import Feeds
from holdfast.server.api.watch import Watch
from tests.server.api.film import make_app, served, settled


def events_in(chunk: bytes) -> tuple[str, str, dict]:
    lines = dict(line.split(": ", 1) for line in chunk.decode().strip().splitlines())
    return lines.get("event", ""), lines.get("id", ""), json.loads(lines["data"])


async def take(stream, number: int) -> list[tuple[str, str, dict]]:
    found: list[tuple[str, str, dict]] = []
    async with asyncio.timeout(20):
        while len(found) < number:
            found.append(events_in(await anext(stream)))
    return found


async def a_view(server, *, key=("test",), load=None):
    jobs = await server.open()
    watch = server.part(Watch)

    async def overview():
        return await watch.overview(jobs), [], False

    return watch.follow(key, jobs, load or overview)


async def test_all_followers_of_a_view_share_one_reader_and_it_ends_with_the_last():
    app = make_app()
    async with served(app) as (server, client):
        reads, jobs, watch = 0, await server.open(), server.part(Watch)

        async def load():
            nonlocal reads
            reads += 1
            return await watch.overview(jobs), [], False

        streams = [await a_view(server, load=load) for _ in range(20)]
        firsts = [(await take(stream, 1))[0] for stream in streams]
        assert watch.views == 1
        before = reads
        await client.submit("film", [{"title": "x"}], delay="1h")
        seconds = [(await take(stream, 1))[0] for stream in streams]
        assert reads - before < 10
        for stream in streams:
            await stream.aclose()

        assert len({json.dumps(one) for one in firsts}) == 1
        assert all(one[0] == "view" and one[2]["states"][0]["jobs"] == 1 for one in seconds)
        assert watch.views == 0


async def test_a_view_says_when_the_store_is_away_and_comes_back():
    app = make_app()
    async with served(app) as (server, _):
        jobs, watch, away = await server.open(), server.part(Watch), True

        async def load():
            if away:
                raise StoreBusy("the store is away; try again")
            return await watch.overview(jobs), [], False

        stream = await a_view(server, load=load)
        [(name, _, said)] = await take(stream, 1)
        assert (name, said["detail"]) == ("trouble", "the store is away; try again")
        away = False
        assert (await take(stream, 1))[0][0] == "view"
        await stream.aclose()


async def test_a_view_that_does_not_change_beats_as_long_as_it_is_read(monkeypatch):
    monkeypatch.setattr("holdfast.server.api.watch.BEAT_SECONDS", 0.2)
    monkeypatch.setattr("holdfast.server.api.watch.IDLE_SECONDS", 0.05)
    monkeypatch.setattr("holdfast.server.api.watch.SEND_SECONDS", 0.05)
    async with served(make_app()) as (server, _):
        jobs, watch, hangs = await server.open(), server.part(Watch), asyncio.Event()

        async def load():
            if hangs.is_set():
                await asyncio.sleep(60)
            return await watch.navigation(jobs), [], False

        stream = await a_view(server, load=load)
        assert [name for name, _, _ in await take(stream, 3)] == ["view", "beat", "beat"]
        hangs.set()
        rest = asyncio.ensure_future(take(stream, 3))
        await asyncio.wait([rest], timeout=1)

        assert not rest.done(), "a reader that hangs does not beat"
        rest.cancel()
        await asyncio.gather(rest, return_exceptions=True)
        await stream.aclose()


async def test_a_job_is_followed_from_any_version_without_gap_or_repeat():
    app = make_app()
    async with served(app) as (server, client), app.worker():
        id = await client.submit("approve", ["it"])
        await settled(app, id)
        jobs, feeds = await server.open(), server.part(Feeds)
        early = feeds.follow(jobs, id, 0)
        first = [one for one in await take(early, 4) if one[0] == "entry"]
        last = int(first[-1][1])
        await early.aclose()
        await client.act(f"/jobs/{id}/answer", value={"ok": True})
        await settled(app, id)
        late = [events_in(chunk) async for chunk in feeds.follow(jobs, id, last)]
        whole = [events_in(chunk) async for chunk in feeds.follow(jobs, id, 0)]

    versions = [int(one[1]) for one in first] + [int(one[1]) for one in late if one[0] == "entry"]
    assert versions == list(range(1, versions[-1] + 1))
    assert [int(one[1]) for one in whole if one[0] == "entry"] == versions
    assert late[-1] == ("end", "", {"state": "completed"})
    assert all(not one[1] for one in late if one[0] == "progress")


async def test_a_follower_far_behind_reads_the_store_itself(monkeypatch):
    monkeypatch.setattr("holdfast.server.api.events.ENTRIES_KEPT", 3)
    app = make_app()
    async with served(app) as (server, client), app.worker():
        id = await client.submit("approve", ["it"])
        await settled(app, id)
        for number in range(8):
            await client.act(f"/jobs/{id}/signal", name="hint", value=number)
        await client.act(f"/jobs/{id}/answer", value={"ok": True})
        await settled(app, id)
        found = [events_in(chunk) async for chunk in server.part(Feeds).follow(await server.open(), id, 0)]

    versions = [int(one[1]) for one in found if one[0] == "entry"]
    assert versions == list(range(1, len(versions) + 1))
    assert len(versions) > 10


async def test_a_follower_of_a_job_hears_that_the_store_is_away_and_misses_nothing(monkeypatch):
    monkeypatch.setattr("holdfast.server.api.events.AWAY_SECONDS", 0.02)
    monkeypatch.setattr("holdfast.server.api.events.WAIT_SECONDS", 0.05)
    monkeypatch.setattr("holdfast.server.api.events.ENTRIES_KEPT", 3)
    app = make_app()
    async with served(app) as (server, client), app.worker():
        id = await client.submit("approve", ["it"])
        await settled(app, id)
        for number in range(5):
            await client.act(f"/jobs/{id}/signal", name="hint", value=number)
        jobs, feeds = await server.open(), server.part(Feeds)
        newest = (await jobs.get(id)).version
        stream = feeds.follow(jobs, id, newest)
        assert (await take(stream, 1))[0][0] == "progress"

        async def away(*_: object) -> None:
            raise StoreBusy("the store is away; try again")

        with monkeypatch.context() as trouble:
            trouble.setattr(jobs, "get", away)
            trouble.setattr(jobs.engine, "history", away)
            [(name, _, said)] = await take(stream, 1)
            behind = asyncio.ensure_future(take(feeds.follow(jobs, id, 0), newest))
            await asyncio.wait([behind], timeout=0.1)
            assert not behind.done()
        await client.act(f"/jobs/{id}/answer", value={"ok": True})
        rest = [events_in(chunk) async for chunk in stream]

    assert (name, said["detail"]) == ("trouble", "the store is away; try again")
    assert [int(one[1]) for one in await behind if one[0] == "entry"] == list(range(1, newest + 1))
    assert int(next(one for one in rest if one[0] == "entry")[1]) == newest + 1
    assert rest[-1][0] == "end"


async def test_a_follower_far_behind_of_a_job_that_was_pruned_is_told_so(monkeypatch):
    monkeypatch.setattr("holdfast.server.api.events.ENTRIES_KEPT", 1)
    monkeypatch.setattr("holdfast.server.api.events.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("holdfast.server.api.events.WAIT_SECONDS", 0.02)
    async with served(make_app()) as (server, client):
        id = await client.submit("approve", ["it"], delay="1h")
        for number in range(3):
            await client.act(f"/jobs/{id}/signal", name="hint", value=number)
        jobs, feeds = await server.open(), server.part(Feeds)
        first = feeds.follow(jobs, id, 0)
        await take(first, 1)

        async def gone(*_: object) -> None:
            raise NotFound("there is no such job in this store")

        async def nothing(*_: object) -> list[object]:
            return []

        monkeypatch.setattr(jobs, "get", gone)
        monkeypatch.setattr(jobs.engine, "history", nothing)
        late = [events_in(chunk) async for chunk in feeds.follow(jobs, id, 0)]
        await first.aclose()

    assert late[-1][0] == "gone"


async def test_a_stream_whose_reader_fails_ends_so_that_its_client_comes_back(monkeypatch):
    async with served(make_app()) as (server, client):
        id = await client.submit("approve", ["it"], delay="1h")
        jobs = await server.open()

        async def fails(*_: object) -> None:
            raise RuntimeError("nobody expected this")

        monkeypatch.setattr(jobs, "status", fails)
        async with asyncio.timeout(20):
            found = [events_in(chunk)[0] async for chunk in server.part(Feeds).follow(jobs, id, 0)]

    assert found == ["entry"]


async def test_a_wrong_stream_is_refused():
    async with served(make_app()) as (_, client):
        for query, words in (
            ({"view": "jobz"}, "view"),
            ({"view": "job"}, "needs id"),
            ({}, "view"),
            ({"view": "jobs", "queue": "Not one"}, "queue"),
            ({"view": "jobs", "type": "no/type"}, "type"),
        ):
            answer = await client.get("/api/v1/stream", params=query)
            assert answer.status_code == 400
            assert words in answer.json()["detail"]
        id = await client.submit("film", [{"title": "x"}])
        for wrong in (b"x", b"-1", "²".encode("latin-1"), b"9" * 19):
            answer = await client.get(f"/api/v1/jobs/{id}/events", headers={b"Last-Event-ID": wrong})
            assert answer.status_code == 400
            assert "Last-Event-ID" in answer.json()["detail"]


async def test_a_slow_follower_gets_the_latest_state_not_all():
    app = make_app()
    async with served(app) as (server, client):
        stream = await a_view(server)
        await take(stream, 1)
        for number in range(3):
            await client.submit("film", [{"title": f"{number}"}], delay="1h")
            await asyncio.sleep(0.3)
        [(_, _, view)] = await take(stream, 1)
        await stream.aclose()

    assert view["states"][0]["jobs"] >= 2
