"""What the changing verbs do: cancel, signal, replay, resolve, discard, pause, resume; and who said so, and why."""

import getpass
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.person import whoami
from holdfast.core.lifecycle import EVENT_ROWS
from holdfast.core.model import PAGE_LIMIT, Event, State
from holdfast.jobs import cancel_many
from holdfast.jobs.service import JobRequest, Jobs
from tests.cli.conftest import Cli
from tests.cli.stores import in_store

ENDED = (State.COMPLETED, State.DISCARDED, State.CANCELLED)


def last(cli: Cli, id: str) -> dict:
    return cli.json("show", id)["history"][-1]


def states(cli: Cli) -> dict[str, str]:
    return {job["id"]: job["state"] for job in cli.json("jobs")["jobs"]}


# cancel


@pytest.mark.parametrize("state", [state for state in State if state not in ENDED])
def test_cancel_stops_a_live_job_and_keeps_who_and_why(state: State, cli: Cli, ids: dict[State, str]):
    cli.ok("cancel", ids[state], "--reason", "wrong brief")

    entry = last(cli, ids[state])
    assert (entry["event"], entry["after"], entry["by"]) == ("cancel", "cancelled", getpass.getuser())
    assert entry["note"] == {"reason": "wrong brief"}


@pytest.mark.parametrize("state", ENDED)
def test_cancel_of_an_ended_job_is_refused(state: State, cli: Cli, ids: dict[State, str]):
    result = cli("cancel", ids[state])

    assert result.exit_code == 1
    already = "has already" if state is State.COMPLETED else "was already"
    assert result.stderr.startswith(f"holdfast: job {ids[state]} {already} {state}, so it can't be cancelled")


def test_one_refusal_does_not_keep_the_others_from_being_cancelled(cli: Cli, ids: dict[State, str]):
    result = cli("cancel", ids[State.AVAILABLE], ids[State.COMPLETED], ids[State.SCHEDULED], "--json")

    assert result.exit_code == 1
    assert states(cli)[ids[State.AVAILABLE]] == states(cli)[ids[State.SCHEDULED]] == "cancelled"
    assert f'"{ids[State.COMPLETED]}"' in result.stdout


def test_many_are_not_cancelled_without_a_yes(cli: Cli, ids: dict[State, str]):
    before = states(cli)

    result = cli("cancel", "--queue", "making")

    assert result.exit_code == 2
    assert result.stderr == (
        "holdfast: cancel 3 jobs, with their children, and undo what they made, where the code says how? "
        "there is no terminal to ask on; pass --yes\n"
    )
    assert states(cli) == before


def test_many_are_cancelled_with_a_yes_but_for_those_in_review(cli: Cli, ids: dict[State, str]):
    assert cli.ok("cancel", "--queue", "making", "--yes", "--reason", "provider down") == (
        "cancelled 3 jobs; 1 job of type holdfast.undo undoes what they made, where the code says how\n"
    )

    now = states(cli)
    assert {now[ids[s]] for s in (State.ACTIVE, State.PENDING, State.RETRYABLE)} == {"cancelled"}
    assert now[ids[State.REVIEW]] == "review"
    assert now[ids[State.AVAILABLE]] == "available"  # in another queue
    assert last(cli, ids[State.ACTIVE])["note"] == {"reason": "provider down"}


def test_review_is_cancelled_when_it_is_named(cli: Cli, ids: dict[State, str]):
    cli.ok("cancel", "--state", "review", "--yes")

    assert states(cli)[ids[State.REVIEW]] == "cancelled"
    assert states(cli)[ids[State.ACTIVE]] == "active"


def test_more_than_a_page_is_cancelled_whole(cli: Cli):
    async def work(jobs: Jobs) -> None:
        await jobs.submit([JobRequest(type="draw", queue="video") for _ in range(PAGE_LIMIT + 50)])

    in_store(cli.path, work)

    assert cli.ok("cancel", "--type", "draw", "--yes") == "cancelled 1,050 jobs\n"
    assert cli.json("queues")["queues"][0]["jobs"]["cancelled"] == PAGE_LIMIT + 50


@pytest.mark.parametrize(("answer", "code", "after"), [(b"n\n", 1, "available"), (b"y\n", 0, "cancelled")])
def test_a_terminal_is_asked_with_the_count(answer: bytes, code: int, after: str, cli: Cli, ids: dict[State, str]):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "holdfast.cli", "cancel", "--state", "available"]
    os.write(master, answer)

    done = subprocess.run(command, stdin=slave, capture_output=True, text=True, timeout=60)

    os.close(master)
    os.close(slave)
    assert "cancel 1 job, with its children, and undo what it made, where the code says how?" in done.stderr
    assert (done.returncode, states(cli)[ids[State.AVAILABLE]]) == (code, after)


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_one_ctrl_c_leaves_a_question_and_changes_nothing(verb: str, cli: Cli, ids: dict[State, str]):
    words = ["--state", "review"] if verb == "cancel" else [ids[State.REVIEW], ids[State.REVIEW][-8:]]
    master, slave = pty.openpty()
    asked = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", verb, *words],
        stdin=slave,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert asked.stderr is not None
    try:
        said, end = b"", time.monotonic() + 60
        while b"[y/N]" not in said and asked.poll() is None:
            assert select.select([asked.stderr], [], [], end - time.monotonic())[0], said
            said += os.read(asked.stderr.fileno(), 1_000)
        sleeping = 0
        while sleeping < 20:  # Python itself swallows a Ctrl-C that comes in the moment before it reads
            assert time.monotonic() < end, said
            sleeping = sleeping + 1 if Path(f"/proc/{asked.pid}/stat").read_text().split()[2] == "S" else 0
            time.sleep(0.01)
        asked.send_signal(signal.SIGINT)
        asked.communicate(timeout=20)
    finally:
        asked.kill()
        asked.wait(10)
        os.close(master)
        os.close(slave)

    assert asked.returncode == 1, said
    assert states(cli)[ids[State.REVIEW]] == "review"


def test_cancelling_by_kind_leaves_the_jobs_that_undo_alone(cli: Cli, ids: dict[State, str]):
    said = cli.ok("cancel", ids[State.ACTIVE])
    (undo,) = [id for id, state in states(cli).items() if id not in ids.values()]
    assert said == f"cancelled {ids[State.ACTIVE][-8:]}; {undo[-8:]} undoes what it made, where the code says how\n"

    told = cli.json("cancel", "--queue", "making", "--yes")
    assert undo not in told["cancelled"]
    assert states(cli)[undo] == "pending"

    assert cli.json("cancel", "--type", "holdfast.undo", "--yes") == {"cancelled": [undo], "refused": [], "undo": []}


@pytest.mark.parametrize("how", ["by id", "by kind"])
def test_a_child_that_is_cancelled_with_its_parent_is_not_refused(how: str, cli: Cli, monkeypatch):
    monkeypatch.setattr(cancel_many, "AT_ONCE", 1)  # first the parent, then its child

    async def work(jobs: Jobs) -> tuple[str, str]:
        await jobs.submit([JobRequest(type="make_book", queue="books")])
        (parent,) = await jobs.engine.claim("w", ["books"], 1)
        (child,) = await jobs.submit([JobRequest(type="write", queue="books")], parent.lease, groups=["chapters"])
        return parent.id, child.id

    family = in_store(cli.path, work)

    result = cli("cancel", *(family if how == "by id" else ["--queue", "books", "--yes"]))

    assert (result.exit_code, result.stderr) == (0, "")
    assert {states(cli)[id] for id in family} == {"cancelled"}


# signal


def test_a_signal_wakes_who_waits_for_it(cli: Cli, ids: dict[State, str]):
    said = cli.ok("signal", ids[State.PENDING], "approved", "--json", '{"ok": true}')

    assert "it continues" in said
    told = cli.json("show", ids[State.PENDING])["job"]
    assert told["state"] == "available"
    assert [(one["name"], one["value"]) for one in told["signals"]] == [("approved", {"ok": True})]
    assert last(cli, ids[State.PENDING])["by"] == getpass.getuser()


def test_another_signal_waits_in_the_inbox(cli: Cli, ids: dict[State, str]):
    assert "; it stays in the inbox, because the job waits for approved\n" in cli.ok(
        "signal", ids[State.PENDING], "other"
    )
    assert cli.json("status", ids[State.PENDING])["state"] == "pending"


def test_a_signal_to_an_ended_job_is_refused(cli: Cli, ids: dict[State, str]):
    assert cli("signal", ids[State.COMPLETED], "approved").exit_code == 1


# replay, resolve, discard


def test_replay_sends_a_job_back_with_its_records(cli: Cli, ids: dict[State, str]):
    id = ids[State.REVIEW]

    assert cli.ok("replay", id, "--reason", "quota raised") == f"replayed {id[-8:]}; it waits for a worker\n"

    told = cli.json("show", id)
    assert told["job"]["attempt"] == 1
    assert len(told["steps"]) == 3
    assert told["history"][-1]["note"] == {"reason": "quota raised"}
    assert told["history"][-1]["by"] == getpass.getuser()


def test_replay_takes_edited_arguments(cli: Cli, ids: dict[State, str]):
    cli.ok("replay", ids[State.REVIEW], "--args", '[{"title": "The Pier"}]')

    assert cli.json("show", ids[State.REVIEW])["job"]["args"] == [{"title": "The Pier"}]


def test_resolve_completes_with_a_result(cli: Cli, ids: dict[State, str]):
    cli.ok("resolve", ids[State.REVIEW], "--result", '{"film": "by-hand.mp4"}', "--reason", "done by hand")

    job = cli.json("show", ids[State.REVIEW])["job"]
    assert (job["state"], job["result"], job["error"]) == ("completed", {"film": "by-hand.mp4"}, None)
    assert last(cli, ids[State.REVIEW])["note"] == {"reason": "done by hand"}


def test_discard_gives_up(cli: Cli, ids: dict[State, str]):
    cli.ok("discard", ids[State.REVIEW], "--reason", "the customer left")

    assert (last(cli, ids[State.REVIEW])["after"]) == "discarded"
    assert cli.ok("review") == "nothing needs a person\n"


@pytest.mark.parametrize("call", [["replay"], ["resolve", "--result", "1"], ["discard"]], ids=" ".join)
@pytest.mark.parametrize("state", [state for state in State if state not in EVENT_ROWS[Event.REPLAY].sources])
def test_only_a_job_in_review_can_be_replayed_resolved_or_discarded(
    call: list[str], state: State, cli: Cli, ids: dict[State, str]
):
    before = states(cli)

    result = cli(*call, ids[state])

    assert result.exit_code == 1
    words = {one: f"was already {one}" for one in ENDED} | {State.COMPLETED: "has already completed"}
    asked = {"replay": "replayed", "resolve": "resolved", "discard": "discarded"}[call[0]]
    state_words = words.get(state, f"is {state}")
    assert result.stderr.startswith(f"holdfast: job {ids[state]} {state_words}, so it can't be {asked}")
    assert states(cli) == before


def test_several_are_replayed_though_one_is_refused(cli: Cli, ids: dict[State, str]):
    result = cli("replay", ids[State.COMPLETED], ids[State.REVIEW])

    assert result.exit_code == 1
    assert result.stdout == f"replayed {ids[State.REVIEW][-8:]}; it waits for a worker\n"


# queues


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(cli: Cli, ids: dict[State, str]):
    async def claim(jobs: Jobs) -> list[str]:
        return [job.id for job in await jobs.engine.claim("w-2", ["video"], 10)]

    cli.ok("queues", "pause", "video", "--reason", "provider down")
    assert in_store(cli.path, claim) == []
    assert "video was paused by" in cli.ok("queues")
    (video,) = [queue for queue in cli.json("queues")["queues"] if queue["name"] == "video"]
    assert (video["paused"], video["paused_by"], video["reason"]) == (True, getpass.getuser(), "provider down")

    cli.ok("queues", "resume", "video")
    assert in_store(cli.path, claim) == [ids[State.AVAILABLE]]
    assert not any(queue["paused"] for queue in cli.json("queues")["queues"])


def test_pausing_says_what_is_in_flight_and_warns_of_a_name_nobody_uses(cli: Cli, ids: dict[State, str]):
    assert cli.ok("queues", "pause", "making") == "paused making; 1 job in flight may finish\n"
    refused = cli("queues", "pause", "vidoe")
    assert refused.exit_code == 1
    assert "queue vidoe has no jobs and no worker" in refused.stderr
    assert cli.ok("queues", "pause", "vidoe", "--yes") == "paused vidoe\n"


def test_the_url_may_stand_before_or_behind_the_sub_verb(cli: Cli, ids: dict[State, str], monkeypatch):
    monkeypatch.delenv("HOLDFAST_URL")
    url = f"sqlite:///{cli.path}"

    cli.ok("queues", "--url", url, "pause", "video")
    cli.ok("queues", "resume", "video", "--url", url)


# who


def test_a_nameless_user_is_called_person(monkeypatch):
    def nobody() -> str:
        raise OSError("no username set")

    monkeypatch.setattr(getpass, "getuser", nobody)

    assert whoami() == "person"
