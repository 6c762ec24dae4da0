"""Claims of queues where jobs have fair keys: the keys take turns (`core.fairness`).

Must not begin or commit. A queue without such jobs is claimed as before, after one look whether it has any.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from types import SimpleNamespace

from holdfast.core.fairness import FAIR_KEY_CHARACTERS, last_key, round_name, turn_value
from holdfast.core.model import Job, Time
from holdfast.engines.fair_turns import Candidate, PlainSource, Source, in_turn
from holdfast.engines.permits import Permits
from holdfast.engines.rows import Row
from holdfast.engines.sqlite.claims import Claims, Look
from holdfast.engines.sqlite.rows import Params

FIRST_PAGE, MORE_PAGES = 1, 8
"""How many jobs of a fair key are read first, and how many times as many with each further read."""

BEYOND_ALL = "\U0010ffff" * (FAIR_KEY_CHARACTERS + 1)
"""No fair key is greater."""


class FairClaims(Claims):
    """The claims of one transaction, also from queues where jobs have fair keys."""

    def _take_from(
        self,
        queue: str,
        types: Collection[str] | None,
        limit: int,
        now: Time,
        keys: dict[str, bool],
        asleep: dict[str, Time | None],
        permits: Permits,
        by: str,
    ) -> list[Job]:
        if not self._db.execute(self._sql.has_fair, {"queue": queue}).fetchone()[0]:
            return super()._take_from(queue, types, limit, now, keys, asleep, permits, by)
        sources: list[Source] = [
            PlainSource(None, _plain(walk, None)) for walk in self._unlimited(queue, types, limit, now)
        ]
        kinds = [type for (type,) in self._db.execute(self._sql.fair_types, {"queue": queue})]
        sources += [self._fair(queue, type, None, now) for type in kinds if types is None or type in types]
        for index, (key, type, *_) in enumerate(self._limits.firsts(queue, keys, now)):
            asleep.pop(key, None)
            if types is None or type in types:
                asked = {"queue": queue, "key": key, "type": type, "now": now}
                plain = self._db.execute(self._sql.plain_behind + " " * index, asked)
                sources += [PlainSource(key, _plain(plain, key)), self._fair(queue, type, key, now)]
        look = FairLook(keys, permits, limit, now)
        name = round_name(queue, types)
        look.take_in_turn(sources, lambda level: self._last_turn(f"{name}{level}"))
        for level, fair in look.ended.items():
            self._db.execute(self._sql.put_bucket, {"name": f"{name}{level}", "value": turn_value(fair), "at": now})
        return self._settle(queue, look, asleep, permits, now, by)

    def _fair(self, queue: str, type: str, key: str | None, now: Time) -> "FairSource":
        return FairSource(self._db, self._sql, {"queue": queue, "type": type, "key": key, "now": now})

    def _last_turn(self, name: str) -> str | None:
        row = self._db.execute(self._sql.record, {"name": name}).fetchone()
        return None if row is None else last_key(row[0])


class FairLook(Look):
    """What one claim finds in a queue where jobs have fair keys. `ended` has the last key of each priority."""

    def __init__(self, keys: Collection[str], permits: Permits, limit: int, now: Time) -> None:
        super().__init__(keys, permits, limit, now)
        self.ended: dict[int, str] = {}

    def take_in_turn(self, sources: Sequence[Source], last: Callable[[int], str | None]) -> None:
        """Go through the jobs of all sources, in the order of their turns."""
        for offer in in_turn(sources, self.blocks, last, self._limit):
            key = offer.candidate.key
            block = self._take_or_move(key, offer.candidate.job)
            if block is None and offer.is_fair:
                self.ended[offer.level] = offer.fair
            elif block is not None and block.key != key and block.key in self._keys:
                self.blocks[block.key] = block.at
            if len(self.taken) == self._limit:
                return


class FairSource:
    """The available jobs of one type with fair keys, without limits or behind one key."""

    is_fair = True

    def __init__(self, db: sqlite3.Connection, sql: SimpleNamespace, asked: Params) -> None:
        self.key: str | None = asked["key"]
        self._db = db
        self._sql = sql
        self._asked = asked

    def level_below(self, below: int | None) -> int | None:
        """See Source."""
        asked = {**self._asked, "below": 1 << 62 if below is None else below}
        row = self._db.execute(self._sql.fair_level, asked).fetchone()
        return None if row is None else int(row[0])

    def keys(self, level: int, after: str | None, until: str | None, most: int) -> list[str]:
        """See Source."""
        bounds = {"after": after or "", "until": BEYOND_ALL if until is None else until}
        asked = {**self._asked, **bounds, "level": level, "most": most}
        return [fair for (fair,) in self._db.execute(self._sql.fair_keys, asked)]

    def walk(self, level: int, fair: str) -> Iterator[Candidate]:
        """See Source."""
        asked = {**self._asked, "level": level, "fair": fair, "run_at": -(1 << 62), "n": 0, "limit": FIRST_PAGE}
        while True:
            rows = self._db.execute(self._sql.fair_jobs, asked).fetchall()
            for row in rows:
                yield Candidate((row[16], row[0]), self.key, row)
            if len(rows) < asked["limit"]:
                return
            asked = {**asked, "run_at": rows[-1][16], "n": rows[-1][0], "limit": asked["limit"] * MORE_PAGES}


def _plain(walk: Iterator[Row], key: str | None) -> Iterator[tuple[int, Candidate]]:
    for row in walk:
        yield row[6], Candidate((row[16], row[0]), key, row)
