"""Which store this is: greeting it, checking the server, noticing that it was emptied or went back; errors in words.

Must not run an act. Every script is told which store its caller means, and refuses where that is another one
(`lua/store.lua`); what a caller has seen of it is kept here.
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
from holdfast.engines.server import CHECK
from holdfast.safe_text import logger

log = logger("holdfast.redis")

FORMAT = 3
"""2: what can be claimed is kept by type. A process of format 1 that is connected already goes on: claims deal out what
it writes, and check what they take (`lua/claim.lua`).

3: steps are counted as they are recorded. A process of format 2 that is connected already goes on: it leaves the
counters of its jobs behind their versions, and so they are not believed (`is_counted` in `lua/store.lua`).

Whoever connects with an older format is refused.
"""
OLDEST_SERVER = (6, 2)
SHARDED_SINCE = (7, 0)
NO_EVICTION = "noeviction"

Given = tuple[str, int, int, str]
"""What every script is told first: the store's id, generation and seq as we know them; the word for telling news."""


class Store:
    """What this process knows of one store: its id, the generation, how far it had come. On the engine's own loop."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._id = ""
        self._gen = 0
        self._seq = 0
        self._tells = "PUBLISH"
        self.lost: StoreLost | None = None
        """Why nothing is done any more: this is not the store that we wrote to."""

    @property
    def sharded(self) -> bool:
        """Whether news go by way of one node of a cluster only."""
        return self._tells == "SPUBLISH"

    @property
    def generation(self) -> int:
        """How many servers the store has lived on."""
        return self._gen

    def given(self) -> Given:
        """What a script is told now."""
        return (self._id, self._gen, self._seq, self._tells)

    async def greet(self, wire: Wire) -> None:
        """The first words on a new connection: which server is this, and is it as far as we saw it?"""
        if self.lost is not None:
            raise self.lost
        server = read_info(await wire.ask("INFO", "server"))
        version = version_of(server)
        if version < OLDEST_SERVER:
            raise StoreForeign(f"{self._url.shown}: version {server['redis_version']} is too old; use 6.2 or newer")
        cluster = server.get("redis_mode") == "cluster"
        self._tells = "SPUBLISH" if cluster and version >= SHARDED_SINCE else "PUBLISH"
        # Other connections may see the store go on while this greeting is under way: what we knew before it counts.
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
            raise StoreForeign(f"{self._url.shown}: those keys are not ours; name another app with ?app=")
        if self._id and id != self._id:
            raise self.lose("it is empty" if id is None else "it is another store by the same name")
        _, _, oldest, gen, seq, began = answer
        assert id is not None
        if int(oldest) > FORMAT:
            raise StoreForeign(f"{self._url.shown}: was written by a newer Holdfast; nothing was written: upgrade")
        if knew_gen:
            reached = seq if gen == knew_gen else -1 if began is None or gen < knew_gen else int(began)
            if reached < knew_seq:
                raise self.lose(_went_back(knew_seq - reached) if reached >= 0 else "it is older than what we saw")
        self._id, self._gen, self._seq = id, max(self._gen, gen), max(self._seq, seq)

    def heard(self, answer: Any, wire: Wire, given: Given) -> Any:
        """Note how far the store has come, which every script answers first; or why nothing was done."""
        first = answer[0]
        if first == b"lost":
            raise self._lost(wire, given, *answer[1:4])
        if first == b"moved":
            raise Moved(mark_of(answer[1].decode()).words())
        if first > self._seq:
            self._seq = first
        return answer

    def _lost(self, wire: Wire, given: Given, id: bytes | None, gen: bytes | None, seq: bytes | None) -> StoreError:
        if id is None or gen is None or seq is None:
            return self.lose("it was emptied")
        given_id, given_gen, given_seq, _ = given
        if id.decode() != given_id:
            return self.lose("it is another store by the same name")
        if int(gen) != given_gen:  # not the server that we greeted last; the next greeting tells which one counts
            error = StoreBusy(f"{self._url.shown}: the server changed; nothing was written: try again")
            wire.cut(error)
            return error
        return self.lose(_went_back(given_seq - int(seq)))

    def lose(self, what: str) -> StoreLost:
        """Remember that this is not the store that we wrote to."""
        if self.lost is None:
            self.lost = StoreLost(
                f"{self._url.shown}: acknowledged work is gone: {what}; nothing more is written from here: "
                "restore it, or accept the loss and restart this process (holdfast doctor tells what is there)"
            )
            log.critical("%s", self.lost)
        return self.lost


def _went_back(acts: int) -> str:
    return f"it went back by {acts} acts that we had seen"


def read_info(text: bytes) -> dict[str, str]:
    """What INFO says."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}


def version_of(server: dict[str, str]) -> tuple[int, ...]:
    """The server's version. Valkey tells the Redis version that it is compatible with."""
    return tuple(int(part) for part in server["redis_version"].split(".")[:2] if part.isdecimal())


async def check_server(wire: Wire, url: StoreUrl) -> None:
    """Refuse a server that would throw jobs away, and say what one can lose."""
    memory = read_info(await wire.call("INFO", "memory"))
    policy = memory.get("maxmemory_policy", NO_EVICTION)
    if int(memory.get("maxmemory", 0)) and policy != NO_EVICTION:
        raise StoreForeign(
            f"{url.shown}: maxmemory-policy is {policy}, so the server would throw jobs away when it is full; "
            "set maxmemory-policy noeviction"
        )
    can_lose = await what_can_be_lost(wire)
    if can_lose:
        log.warning("%s: %s", url.shown, can_lose)


class Health(Struct, frozen=True):
    """How a server is: what of its memory is used, what it may use (0: no limit is set), what it can lose."""

    used: int
    limit: int
    can_lose: str


async def health_of(wire: Wire) -> Health:
    """Ask a server how it is."""
    memory = read_info(await wire.call("INFO", "memory"))
    return Health(int(memory["used_memory"]), int(memory.get("maxmemory", 0)), await what_can_be_lost(wire))


async def what_can_be_lost(wire: Wire) -> str:
    """What a restart or a power cut takes back, in one line; empty where nothing is."""
    kept = read_info(await wire.call("INFO", "persistence"))
    if kept.get("aof_enabled") == "1":
        sync = await _setting(wire, "appendfsync")
        if sync == "always":
            return ""
        if sync == "no":
            return "appendfsync is no: a power cut can lose what the system had not written yet, often 30 seconds"
        return ""  # everysec: the usual; the guarantee table and the guide say that a power cut can lose a second
    save = await _setting(wire, "save")
    if save == "":
        return "appendonly is no and nothing is saved: a restart of the server loses every job; set appendonly yes"
    return "appendonly is no: a crash of the server loses all since its last snapshot; set appendonly yes"


async def _setting(wire: Wire, name: str) -> str | None:
    try:
        answer = await wire.call("CONFIG", "GET", name)
    except said.RedisError:  # a user who may not ask, or a service that hides it
        return None
    return answer[1].decode() if answer else None


_PASSING = ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "ASK", "UNBLOCKED", "READONLY", "NOREPLICAS")
_NO_RIGHTS = ("ACL failure in script", "executing the script can't")
"""What a server says where a script may be run, but not what is in it."""


def translate_error(error: BaseException, url: StoreUrl) -> BaseException:
    """What an error of the server or the network means for a person."""
    where, told = url.shown, str(error)
    code = told.partition(" ")[0]
    match error:
        case HoldfastError() | asyncio.CancelledError():
            return error
        case said.AuthenticationError() | said.AuthorizationError():
            return StoreUnwritable(f"{where}: {told}; check the user and the password")
        case said.NoPermissionError():
            return StoreUnwritable(f"{where}: {told}; give this user the rights that the docs name (ACL)")
        case said.OutOfMemoryError():
            return StoreFull(f"{where}: {told}; nothing was written: raise maxmemory, or let jobs leave sooner (keep=)")
        case said.ReadOnlyError():
            return StoreBusy(f"{where}: is a replica now; nothing was written: try again, or name the primary")
        case said.BusyLoadingError() | said.TryAgainError() | said.ClusterDownError() | said.MasterDownError():
            return StoreBusy(f"{where}: {told}; nothing was written: try again")
        case said.AskError() | said.MovedError():
            return StoreBusy(f"{where}: the store is moving to another node; nothing was written: try again")
        case said.TimeoutError() | TimeoutError():
            return StoreBusy(f"{where}: took too long and was given up; it may or may not be there: look, then repeat")
        case said.ConnectionError() if "max number of clients" in told:
            return StoreBusy(f"{where}: {told}; raise maxclients, or run fewer processes")
        case NotConnected():
            return StoreError(f"{where}: can't be reached ({told}): {CHECK}")
        case said.ConnectionError() | OSError():
            return StoreError(f"{where}: can't be reached ({told}); what was under way may or may not be there")
        case said.ResponseError():
            if code in _PASSING:
                return StoreBusy(f"{where}: {told}; nothing was written: try again")
            if any(words in told for words in _NO_RIGHTS):
                return StoreUnwritable(f"{where}: {told}; give this user the rights that the docs name (ACL)")
            if code == "WRONGTYPE" or "WRONGTYPE" in told:
                return StoreForeign(
                    f"{where}: a key of ours holds something else ({told}); name another app with ?app="
                )
            if code == "MISCONF":
                return StoreFull(f"{where}: {told}; nothing was written")
            return StoreDamaged(f"{where}: {told}")
        case said.RedisError():
            return StoreError(f"{where}: {told}")
    return error
