"""Callback tokens: each answers one wait of one job, once. Must not know HTTP or how a job waits.

A token is derived from the job, the wait's name and a secret of the store, so a job that runs again hands out the same
one, and any process that has the store can check it. Nothing is stored for a token.
"""

import base64
import binascii
import hmac
import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from holdfast.core.durations import in_words
from holdfast.core.errors import NotAllowed, NotFound
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Conflict, Job, Step, StepState, Time
from holdfast.core.unreadable import record_content
from holdfast.engines.contract import Engine
from holdfast.jobs.questions import WAIT_PATH, untaken
from holdfast.jobs.service import Jobs

CALLBACK = "callback"
"""The name of the first callback's signal in a job; later ones are numbered, or have a key."""

SECRET = "secret/callbacks"  # noqa: S105
"""The record with the store's secret for tokens."""

MAC_DIGITS = 40


async def callback_secret(engine: Engine) -> bytes:
    """Return the store's secret for tokens, created at first use."""
    for record in await engine.records(SECRET):
        if record.name == SECRET:
            return bytes.fromhex(record.value)
    answer = await engine.put_record(SECRET, secrets.token_hex(32), 0)
    if isinstance(answer, Conflict):  # another process was first
        return await callback_secret(engine)
    return bytes.fromhex(answer.value)


def make_token(secret: bytes, job: str, name: str) -> str:
    """Return the token of a job's wait. It has only letters, digits, dots, dashes and underscores."""
    named = base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
    return f"{job}.{named}.{_mac(secret, job, name)}"


async def answer_callback(jobs: Jobs, token: str, value: object, *, by: str = CALLBACK) -> Job:
    """Answer the wait that a token belongs to. The answer may come before the wait.

    Raises NotFound for a token that isn't valid, and NotAllowed for one that was used or comes too late.
    """
    job, name = await _read(jobs.engine, token)

    def check(job: Job, waits: Sequence[Step], now: Time) -> None:
        _check_open(job, waits, name, now)

    return await jobs.signal(job, name, value, by=by, check=check)


async def _read(engine: Engine, token: str) -> tuple[str, str]:
    """Return the job and the wait of a token. A forged one says nothing about what exists."""
    job, _, rest = token.partition(".") if isinstance(token, str) else ("", "", "")
    named, _, mac = rest.partition(".")
    try:
        name = base64.urlsafe_b64decode(f"{named}==").decode()
        is_valid = hmac.compare_digest(_mac(await callback_secret(engine), job, name), mac)
    except (binascii.Error, UnicodeError, TypeError, ValueError):
        is_valid, name = False, ""
    if not is_valid:
        raise NotFound("this callback token isn't valid here: it was changed, or it belongs to another store")
    return job, name


def _mac(secret: bytes, job: str, name: str) -> str:
    return hmac.new(secret, f"{job}\n{name}".encode(), sha256).hexdigest()[:MAC_DIGITS]


def _check_open(job: Job, waits: Sequence[Step], name: str, now: Time) -> None:
    """Refuse an answer that comes too late, or a second one."""
    if job.state in TERMINAL:
        raise NotAllowed(f"job {job.id} is already {job.state}, so its {name} can't be answered any more")
    info: dict[str, Any] = {}
    record = next((one for one in waits if one.path == f"{WAIT_PATH}{quote(name, safe=' :')}"), None)
    if record is not None:
        info = record_content(record.result)
    until = info.get("until")
    if info.get("late") or (until is not None and now >= until):
        late = f" by {in_words(max(1_000, now - until))}" if until is not None else ""
        raise NotAllowed(f"job {job.id}: the answer to its {name} comes too late{late}; the job no longer waits for it")
    is_taken = record is not None and record.state is StepState.DONE
    if is_taken or any(signal.name == name for signal in untaken(job, waits)):
        raise NotAllowed(f"job {job.id}: its {name} was already answered; a callback token works once")
