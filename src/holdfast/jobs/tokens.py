"""Tokens: who may call the HTTP API, and what for. Must not know HTTP, and must not keep a token itself.

A token is `hf_ID_SECRET`. The record `token/ID` holds its SHA-256, never the secret: 256 random bits can't be guessed,
so a slow hash would only slow down every request. A revoked token's record stays, so that revoking the last token
doesn't open a server.
"""

import hmac
import secrets
from collections.abc import Collection, Iterable
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import Invalid, NotFound, Outrun
from holdfast.core.model import Conflict, Record, Time
from holdfast.core.suggestions import suggest
from holdfast.engines.contract import Engine

TOKEN = "token/"  # noqa: S105  the prefix of the records' names
"""A record `token/ID` is a token."""

PREFIX = "hf_"
"""What every token starts with, so that secret scanners find one in code."""

SCOPES = {
    "submit": "submit jobs",
    "read": "read jobs, queues, workers and everything else",
    "work": "claim jobs and record their results: a worker",
    "act": "cancel, signal and answer jobs; pause queues; change limits and schedules",
    "review": "replay, resolve and discard jobs in review",
    "admin": "delete jobs, and change how the server runs",
}
"""Each scope, and what it allows. None includes another one."""

TOKENS = 1_000
"""How many tokens a store may have, revoked ones included; a server reads them all."""

NAME_CHARACTERS = 100

UNREADABLE = "(unreadable)"
"""The name of a token whose record can't be read."""

SECRET_BYTES, ID_BYTES = 32, 6

USE_MS = 60_000
"""How exactly a token's last use is known. A use is written at most this often."""

CHANGE_TRIES = 20


class Token(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token as it is stored: everything about it but the secret."""

    name: str
    scopes: tuple[str, ...]
    hash: str
    made_at: Time
    made_by: str
    expires_at: Time | None = None
    used_at: Time | None = None
    revoked_at: Time | None = None
    revoked_by: str = ""
    id: str = ""

    def state(self, now: Time) -> str:
        """Return "valid", "expired" or "revoked"."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "valid"

    def needs_note(self, now: Time) -> bool:
        """Return whether the written last use is too old."""
        return self.used_at is None or now - self.used_at >= USE_MS


def token_of(record: Record) -> Token:
    """Read a token's record. One that can't be read counts as revoked, so that damage opens no server."""
    id = record.name.removeprefix(TOKEN)
    try:
        return replace(msgspec.json.decode(record.value, type=Token), id=id)
    except (msgspec.MsgspecError, RecursionError):
        return Token(name=UNREADABLE, scopes=(), hash="", made_at=record.at, made_by="", revoked_at=record.at, id=id)


async def list_tokens(engine: Engine) -> list[Token]:
    """Return all tokens, oldest first."""
    return sorted((token_of(record) for record in await engine.records(TOKEN)), key=lambda one: (one.made_at, one.id))


def find_token(tokens: Iterable[Token], text: str) -> Token | None:
    """Return the token that this text is, whatever its state, or None."""
    id = id_in(text)
    for token in tokens:
        if token.id == id and hmac.compare_digest(token.hash, _hash(text)):
            return token
    return None


def id_in(text: str) -> str:
    """Return the public part of a token's text, or "" if it isn't a token."""
    return text.removeprefix(PREFIX).partition("_")[0] if text.startswith(PREFIX) else ""


async def create_token(
    engine: Engine, name: str, scopes: Collection[str], *, by: str, expires_ms: int | None = None
) -> tuple[str, Token]:
    """Make a token and return its text, which is stored nowhere, with its record."""
    check_scopes(scopes)
    if not name.strip() or len(name) > NAME_CHARACTERS or not name.isprintable():
        raise Invalid(f"token name {name[:40]!r}: give 1 to {NAME_CHARACTERS} printable characters")
    if expires_ms is not None and expires_ms <= 0:
        raise Invalid(f"token {name}: it would have expired already; give a time such as 30d")
    now, known = await engine.now(), await list_tokens(engine)
    if len(known) >= TOKENS:
        raise Invalid(f"the store has {TOKENS:,} tokens, which is the limit; use one of them")
    if any(one.name == name and one.state(now) == "valid" for one in known):
        raise Invalid(f"there is a valid token named {name} already; choose another name, or revoke that one first")
    id = secrets.token_hex(ID_BYTES)
    text = f"{PREFIX}{id}_{secrets.token_urlsafe(SECRET_BYTES)}"
    ordered = tuple(scope for scope in SCOPES if scope in scopes)
    expires_at = None if expires_ms is None else now + expires_ms
    token = Token(name=name, scopes=ordered, hash=_hash(text), made_at=now, made_by=by, expires_at=expires_at)
    if isinstance(await engine.put_record(TOKEN + id, _text(token), 0), Conflict):
        raise Outrun(f"token {name}: another one got the same id; try again")
    return text, replace(token, id=id)


async def revoke_token(engine: Engine, name: str, *, by: str) -> Token:
    """Revoke a token by its name or id. It counts no more from the next request on, on every server."""
    for _ in range(CHANGE_TRIES):
        records, now = await engine.records(TOKEN), await engine.now()
        known = [(record, token_of(record)) for record in records]
        fit = [one for one in known if name in (one[1].name, one[1].id) and one[1].revoked_at is None]
        if not fit:
            names = [token.name for _, token in known if token.revoked_at is None]
            raise NotFound(f"there is no token {name!r}{suggest(name, names) or '; see holdfast token list'}")
        # An expired token may have the name of a valid one: that one is meant.
        record, token = max(fit, key=lambda one: (one[1].state(now) == "valid", one[1].made_at))
        revoked = replace(token, revoked_at=now, revoked_by=by)
        if not isinstance(await engine.put_record(record.name, _text(revoked), record.version), Conflict):
            return revoked
    raise Outrun(f"token {name}: others kept changing it; try again")


async def note_use(engine: Engine, token: Token, now: Time) -> None:
    """Write when a token was last used, if the written time is old. Never undoes a revocation."""
    for record in await engine.records(TOKEN + token.id):
        stored = token_of(record)
        if stored.id == token.id and stored.state(now) == "valid" and stored.needs_note(now):
            await engine.put_record(record.name, _text(replace(stored, used_at=now)), record.version)


def check_scopes(scopes: Collection[str]) -> None:
    """Refuse an unknown scope, or none at all."""
    if not scopes:
        raise Invalid(f"a token needs a scope; there are {', '.join(SCOPES)}")
    for scope in scopes:
        if scope not in SCOPES:
            hint = suggest(scope, SCOPES) or f"; there are {', '.join(SCOPES)}"
            raise Invalid(f"there is no scope {scope!r}{hint}")


def _text(token: Token) -> str:
    return msgspec.json.encode(replace(token, id="")).decode()


def _hash(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()
