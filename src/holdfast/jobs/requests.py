"""What a caller submits, and the job that it becomes after checks. Must not touch a store."""

import random
import secrets
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast import forking
from holdfast.core.canonical import clipped
from holdfast.core.codec import canonical, parse
from holdfast.core.errors import Invalid
from holdfast.core.keys import check_queue, check_type, digest, new_id
from holdfast.core.lifecycle import first_state
from holdfast.core.limits import JOB_KEY_CHARACTERS, LABELS, META_CHARACTERS, PRIORITIES, TAG_CHARACTERS
from holdfast.core.model import UNREADABLE, Job, Options, Time, UniqueName, Use, Wait, WaitKind
from holdfast.core.outcome import check_retry
from holdfast.core.unique import Unique

PRIORITY_LIMIT, KEY_LIMIT = PRIORITIES, JOB_KEY_CHARACTERS

Ids = Callable[[Time], str]


class Demands(NamedTuple):
    """What the arguments of a call say about its job: what it needs of limits, its fair key, its unique name."""

    limits: tuple[Use, ...] = ()
    fair: str = ""
    unique: UniqueName | None = None

    def added_to(self, options: Options) -> Options:
        """Options with these demands."""
        return msgspec.structs.replace(options, limits=self.limits, fair=self.fair, unique=self.unique)


NO_DEMANDS = Demands()


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller submits. Times are the store's.

    `args` is JSON text. It is checked and made canonical, unless a `Signature` has already `encoded` it.
    """

    type: str
    args: str = "[]"
    encoded: bool = False
    queue: str = "default"
    priority: int = 0
    key: str | None = None
    key_until: Time | None = None
    run_at: Time | None = None
    expires_at: Time | None = None
    pending: bool = False
    options: Options = Options()
    unique: Unique | None = None
    """What makes the job unique. `options` has the name that follows from it, once the arguments are known."""


def new_job(order: JobRequest, id: str, now: Time) -> Job:
    """Check a request and build the job for it."""
    if type(order.priority) is not int or not -PRIORITY_LIMIT <= order.priority <= PRIORITY_LIMIT:
        raise Invalid(
            f"priority {order.priority} is out of range; give a whole number from {-PRIORITY_LIMIT} to {PRIORITY_LIMIT}"
        )
    if order.key is not None and not (isinstance(order.key, str) and 0 < len(order.key) <= KEY_LIMIT):
        raise Invalid(f"key {order.key!r} isn't valid; give a string of 1 to {KEY_LIMIT} characters")
    if order.key is not None and order.options.unique is not None:
        raise Invalid(f"{order.type}: key= and unique= both say which job is the same; give one of them")
    _check_labels(order.options)
    if order.expires_at is not None and order.expires_at <= now:
        raise Invalid(f"{order.type}: expires is in the past; give a time in the future")
    args = order.args if order.encoded else canonical(parse(order.args))
    check_retry(order.options.retry)
    waits = (Wait(WaitKind.ACTIVATION),) if order.pending else ()
    state, run_at = first_state(now, order.run_at, waits)
    return Job(
        id=id,
        type=check_type(order.type),
        queue=check_queue(order.queue),
        args=args,
        digest=digest(order.type, args),
        priority=order.priority,
        key=order.key,
        key_until=order.key_until,
        created_at=now,
        expires_at=order.expires_at,
        options=order.options,
        state=state,
        run_at=run_at,
        waits=waits,
    )


def edited_args(text: str) -> str:
    """Return edited arguments as they are stored, or raise Invalid unless they are a list."""
    value = parse(text)
    if not isinstance(value, list):
        raise Invalid(f'args {clipped(text)} is not a list of arguments; give the whole list, such as ["sea", 3]')
    return canonical(value)


def _check_labels(options: Options) -> None:
    """Check tags and meta. Both are short strings, for people and filters."""
    tags, meta = options.tags, options.meta
    if len(tags) > LABELS or not all(isinstance(tag, str) and 0 < len(tag) <= TAG_CHARACTERS for tag in tags):
        raise Invalid(f"tags: give at most {LABELS} strings of 1 to {TAG_CHARACTERS} characters each")
    if not isinstance(meta, dict) or len(meta) > LABELS:
        raise Invalid(f"meta: give a dict with at most {LABELS} entries")
    if UNREADABLE in meta:
        raise Invalid(f"meta {UNREADABLE!r}: this name is reserved for damaged options; choose another one")
    for name, value in meta.items():
        if not (isinstance(name, str) and isinstance(value, str) and len(name) + len(value) <= META_CHARACTERS):
            raise Invalid(
                f"meta {name!r}: name and value must be strings, with at most {META_CHARACTERS} characters together"
            )


def random_ids() -> Ids:
    """Return a source of ids that sort in the order they were created, and that are unique across processes."""
    return _RandomIds()


class _RandomIds(forking.Forkable):
    def __init__(self) -> None:
        self.leave_behind()
        forking.watch(self)

    def leave_behind(self) -> None:
        """See Forkable. A forked child starts over; otherwise it could create the same ids as its parent."""
        self._lock, self._last_at, self._last_bits = threading.Lock(), 0, 0

    def __call__(self, now: Time) -> str:
        with self._lock:
            if now > self._last_at:
                self._last_at, self._last_bits = now, secrets.randbits(73)
            else:  # the same millisecond, or the clock was set back
                self._last_bits += 1 + random.getrandbits(32)
            return new_id(self._last_at, self._last_bits)
