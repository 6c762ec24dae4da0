"""A real server over real sockets: endless heads and bodies, clients that don't read, streams, a stop."""

import asyncio
import contextlib
import socket
import stat
import time
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from holdfast import App
from holdfast.core.errors import NotAllowed
from holdfast.engines import engine_for
from holdfast.jobs.service import Jobs
from holdfast.jobs.tokens import create_token, revoke_token
from holdfast.server import bodies, run, streams
from holdfast.server.app import Server
from holdfast.server.bodies import json_reply
from holdfast.server.families import FAMILIES
from holdfast.server.routes import OPEN, Family, Route
from holdfast.server.run import bind, uvicorn_for
from holdfast.server.site import GRACE_SECONDS
from holdfast.server.streams import EventStream, event
from tests.server.clients import a_server


async def take(call):
    return json_reply({"bytes": len(await call.body())})


async def big(call):
    return Response(b"x" * 20_000_000)


async def numbers(call):
    closed = call.server.closed = []

    async def count():
        try:
            for number in range(1_000_000):
                yield event({"n": number, "pad": call.query_params.get("pad", "") * 50_000}, name="number", id=number)
                await asyncio.sleep(0 if "pad" in call.query_params else 0.01)
        finally:
            closed.append(True)

    return EventStream(call, count())


async def quiet(call):
    async def nothing():
        await asyncio.sleep(3_600)
        yield b""

    return EventStream(call, nothing())


ROUTES = (
    Route("POST", "/t/take", take, "submit", body_bytes=1_000_000),
    Route("GET", "/t/big", big, OPEN),
    Route("GET", "/t/numbers", numbers, "read", is_stream=True),
    Route("GET", "/t/quiet", quiet, "read", is_stream=True),
)


@contextlib.asynccontextmanager
async def serving(host: str = "127.0.0.1"):
    """A real server in this loop, and the port or path it listens on. It must stop within a few seconds."""
    engine = engine_for("memory:")
    await engine.open()

    async def opening() -> Jobs:
        return Jobs(engine)

    server: Any = Server(opening, families=(*FAMILIES, Family("/t", ROUTES)))
    listener, started = bind(host, 0), asyncio.Event()
    name = listener.getsockname()
    port = name if isinstance(name, str) else name[1]
    uvicorn = server.uvicorn = uvicorn_for(server, started.set)
    task = asyncio.create_task(uvicorn.serve(sockets=[listener]))
    await asyncio.wait_for(started.wait(), 10)
    try:
        yield server, port
    finally:
        uvicorn.should_exit = True
        await asyncio.wait_for(task, 20)
        await engine.close()


async def ask(port: int, raw: bytes, *, seconds: float = 10, most: int = 1 << 20) -> bytes:
    """Send these bytes, and read what comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        writer.write(raw)
        async with asyncio.timeout(seconds):
            while len(got) < most and (part := await reader.read(65_536)):
                got += part
    except (ConnectionError, BrokenPipeError):
        pass
    finally:
        writer.close()
    return got


async def until(is_so) -> None:
    """Wait until something is so, 20 s at most."""
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


HEAD = b"Host: localhost\r\nConnection: close\r\n"
POST = b"POST /t/take HTTP/1.1\r\n" + HEAD + b"Content-Type: application/json\r\n"


async def is_well(port: int) -> bool:
    return (await ask(port, b"GET /health HTTP/1.1\r\n" + HEAD + b"\r\n")).startswith(b"HTTP/1.1 200")


async def test_a_head_that_never_ends_is_cut_off(monkeypatch):
    monkeypatch.setattr(run, "HEADER_SECONDS", 0.3)
    async with serving() as (_, port):
        for raw in (b"", b"GET /heal", b"GET /health HTTP/1.1\r\nHost: loc"):
            assert await ask(port, raw) == b""
        assert await is_well(port)


async def test_a_second_head_on_the_same_connection_is_cut_off_as_well(monkeypatch):
    monkeypatch.setattr(run, "HEADER_SECONDS", 0.3)
    async with serving() as (_, port):
        got = await ask(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")

        assert got.count(b"HTTP/1.1 200") == 1


async def test_a_head_that_drips_is_cut_off_although_it_goes_on(monkeypatch):
    monkeypatch.setattr(run, "HEADER_SECONDS", 0.3)
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(10):
                while True:
                    writer.write(b"X: 1\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.05)
        writer.close()
        del reader


async def test_a_head_too_large_is_refused():
    async with serving() as (_, port):
        got = await ask(port, b"GET /health HTTP/1.1\r\n" + HEAD + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)))

        assert got == b"" or got.startswith(b"HTTP/1.1 4")
        assert await is_well(port)


@pytest.mark.parametrize(
    "more",
    [
        b"".join(b"X-%d: y\r\n" % n for n in range(6_000)),
        b"X: " + 60_000 * b"y" + b"\r\n",
        b"X: " + 33_000 * b"y" + b"\r\n",
    ],
)
@pytest.mark.parametrize("path", [b"/health", b"/ojs/v1/jobs/1", b"/api/v1/jobs"])
async def test_a_head_too_large_that_arrives_whole_is_refused(more: bytes, path: bytes):
    async with serving() as (_, port):
        got = await ask(port, b"GET " + path + b" HTTP/1.1\r\n" + HEAD + more + b"\r\n")

        assert got == b"" or got.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
        assert await is_well(port)


async def test_a_query_too_large_is_refused():
    async with a_server() as (_, client):
        answer = await client.get("/health?" + 33_000 * "x")

        assert (answer.status_code, answer.json()["code"]) == (431, "head_too_large")
        assert (await client.get("/health", headers={"X": 30_000 * "y"})).status_code == 200


async def test_half_a_body_is_answered_408_and_closed(monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.3)
    async with serving() as (_, port):
        got = await ask(port, POST + b"Content-Length: 100\r\n\r\n{")

        assert got.startswith(b"HTTP/1.1 408")


async def test_a_body_that_drips_is_ended_although_it_goes_on(monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.3)
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")

        async def drip():
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"1\r\n \r\n")
                    await writer.drain()
                    await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        dripping.cancel()
        writer.close()


async def test_100_mb_are_refused_without_being_read():
    async with serving() as (_, port):
        announced = await ask(port, POST + b"Content-Length: 100000000\r\n\r\n")
        chunks = b"".join(b"10000\r\n" + b" " * 65_536 + b"\r\n" for _ in range(20))
        streamed = await ask(port, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)

        assert announced.startswith(b"HTTP/1.1 413")
        assert streamed.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"POST /t/take HTTP/1.1\r\n" + HEAD + b"Content-Length: -1\r\n\r\n",
        b"POST /t/take HTTP/1.1\r\n" + HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /t/take HTTP/1.1\r\n" + HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"GET /t/../health HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /he\xffalth HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /%00%ff HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET http://localhost/health HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"CONNECT localhost:1 HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=range(13),
)
async def test_what_is_not_a_proper_request_harms_nobody(raw, monkeypatch):
    monkeypatch.setattr(run, "KEEP_ALIVE_SECONDS", 1)
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.5)
    async with serving() as (_, port):
        got = await ask(port, raw)

        assert got == b"" or 200 <= int(got[9:12]) < 500
        assert await is_well(port)


async def test_a_client_that_does_not_read_is_cut_off(monkeypatch):
    monkeypatch.setattr(run, "WRITE_SECONDS", 0.5)
    async with serving() as (server, port):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.sendall(b"GET /t/big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connections = server.uvicorn.server_state.connections
        await until(lambda: connections)
        await until(lambda: not connections)
        client.close()

        assert await is_well(port)


GET_NUMBERS = b"GET /t/numbers HTTP/1.1\r\nHost: localhost\r\n"


async def test_a_stream_sends_events_and_ends_when_its_client_goes():
    async with serving() as (server, port):
        got = await ask(port, GET_NUMBERS + b"\r\n", most=400)

        assert b"text/event-stream" in got
        await until(lambda: not server.streams and server.closed)


async def test_a_quiet_stream_stays_open_with_comments(monkeypatch):
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.05)
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /t/quiet HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(10):
            await reader.readuntil(b":heartbeat\n\n")
            await reader.readuntil(b":heartbeat\n\n")
        writer.close()


async def test_a_stream_ends_when_its_token_is_revoked(monkeypatch):
    monkeypatch.setattr(streams, "TOKEN_SECONDS", 0.05)
    async with serving() as (server, port):
        engine = (await server.open()).engine
        text, _ = await create_token(engine, "t", ["read"], by="test")
        raw = GET_NUMBERS + f"Authorization: Bearer {text}\r\nConnection: close\r\n\r\n".encode()
        asking = asyncio.create_task(ask(port, raw, seconds=15))
        await until(lambda: server.streams)
        await revoke_token(engine, "t", by="test")

        assert (await asking).startswith(b"HTTP/1.1 200")
        assert server.streams == 0


async def test_a_follower_that_never_reads_is_cut_off(monkeypatch):
    monkeypatch.setattr(run, "WRITE_SECONDS", 0.5)
    async with serving() as (server, port):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.sendall(b"GET /t/numbers?pad=x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: getattr(server, "closed", None))
        client.close()
        assert await is_well(port)


async def test_too_many_streams_are_refused(monkeypatch):
    monkeypatch.setattr(streams, "STREAMS", 0)
    async with serving() as (_, port):
        assert (await ask(port, GET_NUMBERS + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 503")


async def test_a_server_stops_at_once_although_streams_are_open():
    async with serving() as (server, port):
        asking = asyncio.create_task(ask(port, GET_NUMBERS + b"\r\n", seconds=20))
        await until(lambda: server.streams)
        began = time.monotonic()
    assert time.monotonic() - began < GRACE_SECONDS / 2
    assert (await asking).rstrip().endswith(b"0")  # the end of a chunked answer: the stream was ended, not cut


async def test_a_unix_socket_is_for_its_user_alone(tmp_path):
    path = tmp_path / "s"
    async with serving(f"unix:{path}"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/ready")).json() == {"status": "ready"}
            assert (await client.get("/ready", headers={"Host": "evil.example"})).status_code == 421
        with pytest.raises(OSError, match="in use"):
            bind(f"unix:{path}", 0)


def test_a_unix_socket_that_a_killed_server_left_makes_way_and_nothing_else_does(tmp_path):
    path = tmp_path / "s"
    bind(f"unix:{path}", 0).close()
    assert path.is_socket()
    bind(f"unix:{path}", 0).close()
    path.unlink()
    path.write_text("a file")

    with pytest.raises(OSError, match="in use"):
        bind(f"unix:{path}", 0)
    assert path.read_text() == "a file"


async def test_an_open_request_may_finish_when_the_server_stops():
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b"Content-Length: 4\r\n\r\n12")
        await asyncio.sleep(0.2)
        rest = asyncio.get_running_loop().call_later(0.5, writer.write, b"34")
    assert rest.when()
    assert b'{"bytes":4}' in await reader.read()
    writer.close()


async def test_an_app_whose_token_may_only_submit_submits_and_is_told_what_it_may_not():
    async with serving() as (server, port):
        jobs = await server.open()
        text, _ = await create_token(jobs.engine, "clerk", ["submit"], by="test")
        app = App(f"http://127.0.0.1:{port}", token=text)

        @app.job
        async def film(title: str) -> str:
            raise AssertionError("runs elsewhere")

        run = await film.submit("sea", key="order-42")
        again = await film.submit("sea", key="order-42")
        with pytest.raises(NotAllowed, match="needs the scope read"):
            await run.status()
        with pytest.raises(NotAllowed, match="needs the scope act"):
            await run.cancel()
        await app.close()

        assert again.id == run.id
        assert (await jobs.get(run.id)).args == '["sea"]'
