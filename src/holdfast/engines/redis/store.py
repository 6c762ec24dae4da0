"""Identifies the store: greets it, checks the server, notices lost data; and translates the server's errors.

Must not read or write jobs. Every call tells its script which store the caller expects, and the script refuses if this
is another one (`lua/store.lua`). What the caller has seen of the store is kept here.
"""

import asyncio
import secrets
from typing import Any

from msgspec import Struct
from redis import exceptions as said

from holdfast.core.errors import (
    HoldfastError,
    Moved,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreLost,
    StoreUnwritable,
)
from holdfast.core.moves import mark_of
from holdfast.engines.redis.connection import NotConnected, Wire
from holdfast.engines.redis.scripts import script
from holdfast.engines.redis.url import StoreUrl
from holdfast.engines.server import CHECK, TIMED_OUT, UNKNOWN
from holdfast.safe_text import logger

log = logger("holdfast.redis")

FORMAT = 7
"""2: ready jobs are kept by type. A process with format 1 that is already connected keeps working: claims sort what it
writes into the types, and check what they take (`lua/claim.lua`).

3: steps are counted as they are recorded. A process with format 2 that is already connected keeps working: it doesn't
update the counters, so their version falls behind the job's, and readers ignore them (`is_counted` in `lua/steps.lua`).

4: jobs with shared limits wait apart from the others. A process with format 3 that is already connected keeps working:
it ignores limits. Claims sort what it makes available, and pass over what it takes away (`lua/limits.lua`).

5: jobs have budgets. A process with format 4 that is already connected keeps working: it ignores budgets, and its
claims wake jobs that wait for one. A newer process that runs such a job lets it wait again.

7: jobs with fair keys wait apart from the others. A process with an older format that is already connected keeps
working: it ignores fair keys. Claims sort what it makes available, and pass over what it takes away (`lua/fair.lua`).

The store refuses new connections from older formats.
"""
OLDEST_SERVER = (6, 2)
SHARDED_SINCE = (7, 0)
NO_EVICTION = "noeviction"

Given = tuple[str, int, int, str]
"""What every script gets first: the store's id, generation and seq as we know them, and the command to notify with."""


class Store:
    """What this process knows of one store: its id, its generation, its seq. Lives on the engine's own loop."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._id = ""
        self._gen = 0
        self._seq = 0
        self._tells = "PUBLISH"
        self.lost: StoreLost | None = None
        """Why we refuse everything from now on: this is not the store that we wrote to."""

    @property
    def sharded(self) -> bool:
        """Whether notifications go through only one node of a cluster."""
        return self._tells == "SPUBLISH"

    @property
    def generation(self) -> int:
        """How many servers the store has lived on so far."""
        return self._gen

    def given(self) -> Given:
        """What to give a script now."""
        return (self._id, self._gen, self._seq, self._tells)

    async def greet(self, wire: Wire) -> None:
        """Identify the server on a new connection, and check that it has everything we have seen."""
        if self.lost is not None:
            raise self.lost
        server = read_info(await wire.ask("INFO", "server"))
        version = version_of(server)
        if version < OLDEST_SERVER:
            raise StoreForeign(
                f"{self._url.shown}: server version {server['redis_version']} is too old; use 6.2 or newer"
            )
        cluster = server.get("redis_mode") == "cluster"
        self._tells = "SPUBLISH" if cluster and version >= SHARDED_SINCE else "PUBLISH"
        # Other connections may see newer writes during this greeting, so compare with what we knew before it.
        gen, seq = self._gen, self._seq
        words = (self._id, server["run_id"], gen, secrets.token_hex(8), FORMAT, FORMAT)
        greet = script("greet")
        try:
            answer = await wire.ask("EVALSHA", greet.sha, 1, self._url.tag, *words)
        except said.NoScriptError:
            answer = await wire.ask("EVAL", greet.text, 1, self._url.tag, *words)
        self._check(answer, gen, seq)

    def _check(self, answer: list[Any], knew_gen: int, knew_seq: int) -> None:
        id = None if answer[0] is None else answer[0].decode()
        if id is None and not self._id:
            raise StoreForeign(
                f"{self._url.shown}: keys with this prefix belong to another program; choose another app with ?app="
            )
        if self._id and id != self._id:
            raise self.lose("it is empty" if id is None else "another store has its name now")
        _, _, oldest, gen, seq, began = answer
        assert id is not None
        if int(oldest) > FORMAT:
            raise StoreForeign(
                f"{self._url.shown}: was written by a newer Holdfast; nothing was written; upgrade Holdfast"
            )
        if knew_gen:
            reached = seq if gen == knew_gen else -1 if began is None or gen < knew_gen else int(began)
            if reached < knew_seq:
                raise self.lose(
                    _went_back(knew_seq - reached) if reached >= 0 else "it is older than the data we have seen"
                )
        self._id, self._gen, self._seq = id, max(self._gen, gen), max(self._seq, seq)

    def note_answer(self, answer: Any, wire: Wire, given: Given) -> Any:
        """Note the store's seq, which every script returns first; or raise why the script did nothing."""
        first = answer[0]
        if first == b"lost":
            raise self._lost(wire, given, *answer[1:4])
        if first == b"moved":
            raise Moved(mark_of(answer[1].decode()).words())
        self.note_seq(first)
        return answer

    def note_seq(self, seq: int) -> None:
        """Note how far the store has come. From any thread: of two at once the earlier may win, until the next one."""
        if seq > self._seq:
            self._seq = seq

    def _lost(self, wire: Wire, given: Given, id: bytes | None, gen: bytes | None, seq: bytes | None) -> StoreError:
        if id is None or gen is None or seq is None:
            return self.lose("it was emptied")
        given_id, given_gen, given_seq, _ = given
        if id.decode() != given_id:
            return self.lose("another store has its name now")
        if int(gen) != given_gen:  # not the server that we greeted last; the next greeting decides which one counts
            error = StoreBusy(f"{self._url.shown}: the server changed; nothing was written; try again")
            wire.cut(error)
            return error
        return self.lose(_went_back(given_seq - int(seq)))

    def lose(self, what: str) -> StoreLost:
        """Remember that this is not the store that we wrote to."""
        if self.lost is None:
            self.lost = StoreLost(
                f"{self._url.shown}: the store lost acknowledged writes: {what}; this process writes nothing more: "
                "restore the data, or accept the loss and restart this process (`holdfast doctor` shows what is left)"
            )
            log.critical("%s", self.lost)
        return self.lost


def _went_back(acts: int) -> str:
    return f"it is {acts} writes behind what we have seen"


def read_info(text: bytes) -> dict[str, str]:
    """Parse the answer to INFO."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}


def version_of(server: dict[str, str]) -> tuple[int, ...]:
    """The server's version. Valkey reports the Redis version that it is compatible with."""
    return tuple(int(part) for part in server["redis_version"].split(".")[:2] if part.isdecimal())


async def check_server(wire: Wire, url: StoreUrl) -> None:
    """Refuse a server that evicts jobs, and warn about what it can lose."""
    memory = read_info(await wire.call("INFO", "memory"))
    policy = memory.get("maxmemory_policy", NO_EVICTION)
    if int(memory.get("maxmemory", 0)) and policy != NO_EVICTION:
        raise StoreForeign(
            f"{url.shown}: maxmemory-policy is {policy}, so the server would delete jobs when its memory is full; "
            "set maxmemory-policy noeviction"
        )
    can_lose = await what_can_be_lost(wire)
    if can_lose:
        log.warning("%s: %s", url.shown, can_lose)


class Health(Struct, frozen=True):
    """A server's health: used memory, allowed memory (0: no limit), and what the server can lose."""

    used: int
    limit: int
    can_lose: str


async def health_of(wire: Wire) -> Health:
    """Ask a server for its health."""
    memory = read_info(await wire.call("INFO", "memory"))
    return Health(int(memory["used_memory"]), int(memory.get("maxmemory", 0)), await what_can_be_lost(wire))


async def what_can_be_lost(wire: Wire) -> str:
    """What a restart or a power cut can lose, in one line; empty if nothing."""
    kept = read_info(await wire.call("INFO", "persistence"))
    if kept.get("aof_enabled") == "1":
        sync = await _setting(wire, "appendfsync")
        if sync == "always":
            return ""
        if sync == "no":
            return "appendfsync is no: a power cut can lose the writes of about 30 seconds; set appendfsync everysec"
        return ""  # everysec is the usual setting; the docs say that a power cut can lose a second
    save = await _setting(wire, "save")
    if save == "":
        return (
            "appendonly is no and there are no snapshots: a restart of the server loses every job; set appendonly yes"
        )
    return "appendonly is no: a crash of the server loses every write since its last snapshot; set appendonly yes"


async def _setting(wire: Wire, name: str) -> str | None:
    try:
        answer = await wire.call("CONFIG", "GET", name)
    except said.RedisError:  # this user may not ask, or the service hides the setting
        return None
    return answer[1].decode() if answer else None


_PASSING = ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "ASK", "UNBLOCKED", "READONLY", "NOREPLICAS")
_NO_RIGHTS = ("ACL failure in script", "executing the script can't")
"""What a server says if the user may run a script, but not the commands in it."""


def translate_error(error: BaseException, url: StoreUrl) -> BaseException:
    """Turn an error of the server or the network into one that a person understands."""
    where, reason = url.shown, str(error)
    code = reason.partition(" ")[0]
    match error:
        case HoldfastError() | asyncio.CancelledError():
            return error
        case said.AuthenticationError() | said.AuthorizationError():
            return StoreUnwritable(f"{where}: {reason}; check the user and the password")
        case said.NoPermissionError():
            return StoreUnwritable(f"{where}: {reason}; give this user the ACL rights listed in the Redis guide")
        case said.OutOfMemoryError():
            return StoreFull(
                f"{where}: {reason}; nothing was written; raise maxmemory or keep jobs for less time (keep=)"
            )
        case said.ReadOnlyError():
            return StoreBusy(
                f"{where}: this server is a replica now; nothing was written; try again, or use the primary's URL"
            )
        case said.BusyLoadingError() | said.TryAgainError() | said.ClusterDownError() | said.MasterDownError():
            return StoreBusy(f"{where}: {reason}; nothing was written; try again")
        case said.AskError() | said.MovedError():
            return StoreBusy(f"{where}: the store is moving to another node; nothing was written; try again")
        case said.TimeoutError() | TimeoutError():
            return StoreBusy(f"{where}: {TIMED_OUT}")
        case said.ConnectionError() if "max number of clients" in reason:
            return StoreBusy(f"{where}: {reason}; raise maxclients or run fewer processes")
        case NotConnected():
            return StoreError(f"{where}: can't be reached ({reason}): {CHECK}")
        case said.ConnectionError() | OSError():
            return StoreError(f"{where}: can't be reached ({reason}); {UNKNOWN}")
        case said.ResponseError():
            if code in _PASSING:
                return StoreBusy(f"{where}: {reason}; nothing was written; try again")
            if any(words in reason for words in _NO_RIGHTS):
                return StoreUnwritable(f"{where}: {reason}; give this user the ACL rights listed in the Redis guide")
            if code == "WRONGTYPE" or "WRONGTYPE" in reason:
                return StoreForeign(
                    f"{where}: one of our keys holds another type of value ({reason}); choose another app with ?app="
                )
            if code == "MISCONF":
                return StoreFull(f"{where}: {reason}; nothing was written")
            return StoreDamaged(f"{where}: {reason}")
        case said.RedisError():
            return StoreError(f"{where}: {reason}")
    return error
