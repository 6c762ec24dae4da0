"""`holdfast serve` and `holdfast token`, as a person calls them; real processes only where one is needed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from holdfast.cli.server_process import Serving, loop_factory
from tests.cli.conftest import Cli
from tests.server.clients import a_real_server

APP = """
from holdfast import App
app = App()

@app.job
async def double(x: int) -> int:
    return 2 * x
"""


CALLING = """
from holdfast import App, callback
app = App()

@app.job
async def order() -> str:
    async with callback(as_=str) as cb:
        return cb.url
"""


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text.strip()}"}


def test_a_token_is_printed_alone_and_never_again(cli: Cli):
    made = cli("token", "create", "ci", "--scope", "submit,read", "--expires", "30d")
    listed, shown = cli("token", "list"), json.loads(cli("token", "list", "--json").stdout)

    assert made.stdout.count("\n") == 1
    assert made.stdout.startswith("hf_")
    assert len(made.stdout.strip()) >= 56
    assert "submit, read" in made.stderr
    secret = made.stdout.strip().split("_", 2)[2]
    assert secret not in listed.stdout + json.dumps(shown)
    assert (shown["tokens"][0]["name"], shown["tokens"][0]["state"]) == ("ci", "valid")
    assert shown["tokens"][0]["scopes"] == ["submit", "read"]
    assert cli("token", "revoke", "ci").stdout == "revoked ci\n"
    assert json.loads(cli("token", "list", "--json").stdout)["tokens"][0]["state"] == "revoked"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("create", "ci"), "--scope"),
        (("create", "ci", "--scope", "reed"), "did you mean read?"),
        (("create", "ci", "--scope", ","), "needs a scope"),
        (("create", "", "--scope", "read"), "name"),
        (("create", "a\nb", "--scope", "read"), "printable"),
        (("create", "ci", "--scope", "read", "--expires", "soon"), "soon"),
        (("create", "ci", "--scope", "read", "--expires", "0s"), "expired"),
    ],
)
def test_a_wrong_call_makes_no_token(cli: Cli, call: tuple[str, ...], words: str):
    done = cli("token", *call)

    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_two_valid_tokens_have_two_names_and_a_name_is_free_after_a_revoke(cli: Cli):
    assert cli("token", "create", "ci", "--scope", "read").exit_code == 0
    assert "already" in cli("token", "create", "ci", "--scope", "read").stderr
    assert cli("token", "revoke", "cy").exit_code == 1
    assert cli("token", "revoke", "ci").exit_code == 0
    assert cli("token", "create", "ci", "--scope", "read").exit_code == 0


def test_a_wider_host_needs_a_token_and_test_hooks_never_get_one(cli: Cli):
    def serve(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast.cli", "serve", *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    wide = serve("--host", "0.0.0.0", "--port", "0")
    hooks = cli("serve", "--host", "0.0.0.0", "--port", "0", "--test-hooks", "--no-auth")
    worker = cli("serve", "--with-worker")

    assert (wide.returncode, hooks.exit_code, worker.exit_code) == (2, 2, 2)
    assert "holdfast token create" in wide.stderr
    assert "loopback" in hooks.stderr
    assert "name the App" in worker.stderr


def test_a_port_in_use_is_one_clear_line(cli: Cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = cli("serve", "--port", str(taken.getsockname()[1]))

    assert done.exit_code == 1
    assert "choose another --port" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_server_listens_on_loopback_only_logs_json_and_stops_on_sigterm(tmp_path: Path):
    with a_real_server(tmp_path, "--log-format", "json") as (base, process):
        port = int(base.rpartition(":")[2])
        assert httpx.get(f"{base}/ready").json() == {"status": "ready"}
        listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line]
        assert [address for address in listening if address.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    lines = [json.loads(line) for line in (tmp_path / "serve.log").read_text().splitlines()]
    [request] = [line for line in lines if line["logger"] == "holdfast.access"]
    assert (request["method"], request["route"], request["status"], request["by"]) == ("GET", "/ready", 200, "http")


def test_two_servers_on_one_store_know_each_others_tokens(tmp_path: Path, cli: Cli):
    url = f"sqlite:///{tmp_path}/jobs.db"
    with a_real_server(tmp_path, "--url", url) as (one, _), a_real_server(tmp_path, "--url", url) as (two, _):
        assert httpx.get(f"{one}/x").status_code == 404
        token = cli("token", "create", "t", "--scope", "read", "--url", url).stdout
        assert [httpx.get(f"{base}/x").status_code for base in (one, two)] == [401, 401]
        assert [httpx.get(f"{base}/x", headers=bearer(token)).status_code for base in (one, two)] == [404, 404]
        assert cli("token", "revoke", "t", "--url", url).exit_code == 0
        assert [httpx.get(f"{base}/x", headers=bearer(token)).status_code for base in (one, two)] == [401, 401]


def test_a_job_of_the_worker_beside_can_name_the_server_to_a_provider(tmp_path: Path, cli: Cli):
    (tmp_path / "orders.py").write_text(CALLING)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with a_real_server(tmp_path, "orders:app", "--with-worker", "--url", url) as (base, _):
        submit = ("submit", "orders:app", "order", "--wait", "--timeout", "40s", "--url", url)
        assert f"{base}/callback/" in cli.ok(*submit)


def test_a_worker_beside_runs_the_jobs(tmp_path: Path, cli: Cli):
    (tmp_path / "beside.py").write_text(APP)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with a_real_server(tmp_path, "beside:app", "--with-worker", "--url", url) as (base, process):
        assert httpx.get(f"{base}/health").status_code == 200
        submit = ("submit", "beside:app", "double", "--args", "[21]", "--wait", "--timeout", "40s", "--url", url)
        assert "42" in cli.ok(*submit)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_several_processes_serve_one_port_and_a_killed_one_comes_back(tmp_path: Path):
    with a_real_server(tmp_path, "--processes", "2") as (base, process):
        until = time.monotonic() + 30
        while len(children := _children(process.pid)) < 2:
            assert time.monotonic() < until
            time.sleep(0.1)
        os.kill(children[0], signal.SIGKILL)
        for _ in range(20):
            assert httpx.get(f"{base}/health").status_code == 200
        while len(_children(process.pid)) < 2 or children[0] in _children(process.pid):
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{base}/health")


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        pytest.skip("this system doesn't list the children of a process")


def test_jobs_beside_a_server_keep_the_loop_of_asyncio():
    assert loop_factory(Serving("127.0.0.1", 0, with_worker=True)) is None


def test_a_server_alone_runs_on_uvloop():
    uvloop = pytest.importorskip("uvloop")
    assert loop_factory(Serving("127.0.0.1", 0)) is uvloop.new_event_loop
