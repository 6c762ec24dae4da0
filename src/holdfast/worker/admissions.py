"""Asking for permits: what all steps of a worker ask for in one turn of the loop is one call to the store.

Records that are due go along, and with them the permits of the steps that they end. A step that is refused stays in
line behind the key that has no room. Must not know jobs, or what a permit is for.
"""

import asyncio
import contextvars
import itertools
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.core.budgets import unused
from holdfast.core.errors import Invalid
from holdfast.core.model import Admission, Ask, Conflict, Recorded, Step, Time
from holdfast.engines.contract import Engine
from holdfast.engines.topics import limit_topic
from holdfast.safe_text import logger

log = logger("holdfast.worker")

ACT_LIMIT = 200
"""How many writes, and how many asks, go to the store in one call."""

TURNS = 3
"""How often the loop goes round before a call: so many a step needs from its answer to what it asks or writes next."""

WOKEN_FIRST = 2
"""How many steps in line ask again when there may be room: one that gets it, and one that hears when there is more.

If all of them get it, twice as many ask next.
"""

LISTEN_SECONDS = 5.0
"""How often the first in line asks again, even if nothing was heard."""

FAILED_PAUSE_SECONDS = 0.5
"""How long a line waits before it asks again after the store has failed, or its clock was set back."""

LISTEN_PAUSE_SECONDS = 0.05
"""How long what is heard is collected: most of it are our own permits, which the next in line already has."""


CLOCK_SECONDS = 1.0
"""If a refusal names a time that is this long past, the store's clock was set back, and we have yet to hear of it."""


class Asker(Protocol):
    """An attempt whose steps ask. It doesn't end while an ask is on its way, or what is granted would be lost.
    No ask is sent while it suspends.
    """

    is_closing: bool

    def begin_ask(self) -> None:
        """Note that an ask is sent."""

    def end_ask(self) -> None:
        """Note that it is answered."""

    def now(self) -> Time:
        """Return the store's time."""


class Waiting:
    """One step that asks. `on_refusal` is called with each refusal."""

    def __init__(self, ask: Ask, asker: Asker) -> None:
        loop = asyncio.get_running_loop()
        self.ask = ask
        self.asks, self.steps = [ask], list[Step]()
        self.asker = asker
        self.first: asyncio.Future[Admission | Conflict] = loop.create_future()
        """The first answer."""
        self.last: asyncio.Future[Admission | Conflict] = loop.create_future()
        """The answer that ends the wait: it is admitted, or its lease is over."""
        self.key = ""
        """The key behind which it is in line."""
        self.at: Time | None = None
        """When that key may have room, if that is known."""
        self.on_refusal: Callable[[], None] | None = None
        self.is_left = False
        self.number = next(_numbers)


class _Write:
    """Records, and permits that end with them. `frees` are the keys of those permits."""

    def __init__(self, steps: list[Step], asks: list[Ask], frees: Sequence[str]) -> None:
        self.steps = steps
        self.asks = asks
        self.frees = frees
        self.answer: asyncio.Future[list[Recorded | Conflict]] = asyncio.get_running_loop().create_future()


_numbers = itertools.count()


class Admissions:
    """The asks and writes of one worker that wait for the next call. Belongs to the loop.

    One call is under way at a time: so a step's next ask never overtakes the end of its last permit.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._new: list[Waiting] = []
        self._writes: list[_Write] = []
        self._lines: defaultdict[str, list[Waiting]] = defaultdict(list)
        """The steps that were refused, by key, in the order in which they first asked."""
        self._woken: Counter[str] = Counter()
        """How many of each line ask with the next call."""
        self._freed: Counter[str] = Counter()
        """How many permits of each key the call that is under way gives back."""
        self._sending: asyncio.Task[None] | None = None
        self._listeners: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, tuple[Time, asyncio.TimerHandle]] = {}

    def ask(self, waiting: Waiting) -> "asyncio.Future[Admission | Conflict]":
        """Ask with the next call; return the future of the first answer."""
        if waiting.first.done():
            waiting.first = asyncio.get_running_loop().create_future()
        self._new.append(waiting)
        self._send_soon()
        return waiting.first

    def leave(self, waiting: Waiting) -> None:
        """Give up waiting. A permit that is on its way is given back."""
        waiting.is_left = True
        line, last = self._lines.get(waiting.key, []), waiting.last
        if waiting in line:
            line.remove(waiting)
            self._end_line(waiting.key)
        elif last.done() and last.exception() is None and isinstance(last.result(), Admission):
            self._give_back(waiting)

    async def write(
        self, steps: Sequence[Step], gives_back: Sequence[Ask] = (), frees: Sequence[str] = ()
    ) -> Sequence[Recorded | Conflict]:
        """Record steps, and give back permits of these keys, with the next call."""
        write = _Write(list(steps), list(gives_back), frees)
        self._writes.append(write)
        self._send_soon()
        return await write.answer

    def continue_asking(self) -> None:
        """Send what was held back while an attempt tried to end."""
        if self._new or self._woken:
            self._send_soon()

    def close(self) -> None:
        """Stop listening, because the worker has stopped."""
        for task in (*self._listeners.values(), *([self._sending] if self._sending is not None else [])):
            task.cancel()
        for _, timer in self._timers.values():
            timer.cancel()
        self._lines.clear()

    # Calling the store.

    def _send_soon(self) -> None:
        if self._sending is None:
            # In a context of its own: timers that are set here are none of the job's.
            loop = asyncio.get_running_loop()
            self._sending = loop.create_task(self._send_all(), context=contextvars.Context())

    async def _send_all(self) -> None:
        try:
            await self._let_others_come()
            while items := self._take():
                await self._call(items)
                await self._let_others_come()
        finally:
            self._sending = None

    async def _let_others_come(self) -> None:
        """Let the steps that can go on now, such as those that were just answered, ask with the same call."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def _take(self) -> list[Waiting | _Write]:
        """Take what the next call carries: writes, then the first in the lines that move up, then new asks."""
        writes, self._writes = self._writes[:ACT_LIMIT], self._writes[ACT_LIMIT:]
        self._freed = Counter(key for write in writes for key in write.frees)
        counts, self._woken = self._freed | self._woken, Counter()
        heads: list[Waiting] = []
        for key, count in counts.items():
            line = self._lines.get(key, [])
            moved = list(itertools.islice((one for one in line if not one.asker.is_closing), min(count, ACT_LIMIT)))
            for one in moved:
                line.remove(one)
            heads += moved
            if line and len(moved) < min(count, ACT_LIMIT):
                self._woken[key] = count - len(moved)
        asking = [one for one in self._new if not one.is_left]
        new = [one for one in asking if not one.asker.is_closing]
        self._new = [*new[ACT_LIMIT:], *(one for one in asking if one.asker.is_closing)]
        return [*writes, *heads, *new[:ACT_LIMIT]]

    async def _call(self, items: "list[Waiting | _Write]") -> None:
        askers = [one.asker for one in items if isinstance(one, Waiting)]
        for asker in askers:
            asker.begin_ask()
        try:
            await self._send(items)
        finally:
            for asker in askers:
                asker.end_ask()

    async def _send(self, items: "list[Waiting | _Write]") -> None:
        asks, steps = [ask for one in items for ask in one.asks], [step for one in items for step in one.steps]
        try:
            admitted, recorded = await self._engine.admit(asks, steps)
        except BaseException as error:
            if isinstance(error, Invalid) and len(items) > 1:  # find the invalid one; only that one fails
                for one in items:
                    await self._send([one])
                return
            for one in items:
                self._fail(one, error)
            if not isinstance(error, Exception):
                raise
            return
        answers, records = iter(admitted), iter(recorded)
        moved: Counter[str] = Counter()
        for one in items:
            got, stored = [next(answers) for _ in one.asks], [next(records) for _ in one.steps]
            if isinstance(one, Waiting):
                moved[one.key] += 1
                self._answer(one, got[0])
            elif not one.answer.done():  # the waiter may have been cancelled; the records are stored anyway
                one.answer.set_result(stored)
        refused = {one.key for one in items if isinstance(one, Waiting) and not one.last.done()}
        for key, count in moved.items():
            # All of them got in, and not only because we gave permits back: there may be more room.
            if key not in refused and count > self._freed[key]:
                self._wake(key, 2 * count)

    def _fail(self, one: "Waiting | _Write", error: BaseException) -> None:
        """The store failed: a step in line stays there, and everybody else asks again or gives up."""
        if isinstance(one, _Write):
            if not one.answer.done():
                one.answer.set_exception(error)
        elif not one.key:
            if not one.first.done():
                one.first.set_exception(error)
        elif isinstance(error, Exception) and not isinstance(error, Invalid):
            self._line_up(one, FAILED_PAUSE_SECONDS)
        else:
            one.last.set_exception(error)
            if one.on_refusal is not None:
                one.on_refusal()

    def _answer(self, one: Waiting, answer: Admission | Conflict) -> None:
        if isinstance(answer, Conflict) or answer.admitted:
            if one.is_left and isinstance(answer, Admission):
                self._give_back(one)
            one.key = ""
            for future in (one.first, one.last):
                if not future.done():
                    future.set_result(answer)
        else:
            if not one.first.done():
                one.first.set_result(answer)
            one.key, one.at = answer.key, answer.at
            if not one.is_left:
                self._line_up(one)
        if one.on_refusal is not None:
            one.on_refusal()

    def _give_back(self, one: Waiting) -> None:
        """Give back what was granted to a step that didn't wait for it. If that fails, it ends with the lease."""
        ask = one.ask
        back = Ask(job=ask.job, epoch=ask.epoch, path=ask.path, try_number=ask.try_number, settles=unused(ask))
        write = _Write([], [back], [use.key for use in ask.uses])

        def written(answer: "asyncio.Future[list[Recorded | Conflict]]") -> None:
            if not answer.cancelled():
                answer.exception()  # nobody waits for it
            one.asker.end_ask()

        one.asker.begin_ask()
        write.answer.add_done_callback(written)
        self._writes.append(write)
        self._send_soon()

    # Waking those in line.

    def _line_up(self, one: Waiting, pause: float = 0.0) -> None:
        insort(self._lines[one.key], one, key=lambda other: other.number)
        self._listen(one.key)
        self._set_timer(one, pause)

    def _wake(self, key: str, count: int = WOKEN_FIRST) -> None:
        if self._lines.get(key):
            self._woken[key] = max(self._woken[key], count)
            self._send_soon()

    def _set_timer(self, one: Waiting, pause: float) -> None:
        """Let a line ask again when its key may have room, but not before this pause is over."""
        known = self._timers.get(one.key)
        if one.at is None or (known is not None and known[0] <= one.at):
            return
        if known is not None:
            known[1].cancel()
        loop, key = asyncio.get_running_loop(), one.key
        left = (one.at - one.asker.now()) / 1_000
        if left < -CLOCK_SECONDS:
            pause = FAILED_PAUSE_SECONDS
        delay = max(pause, left) + 0.001
        timer = loop.call_later(delay, self._ring, key, context=contextvars.Context())
        self._timers[key] = (one.at, timer)

    def _ring(self, key: str) -> None:
        del self._timers[key]
        self._wake(key)

    def _listen(self, key: str) -> None:
        known = self._listeners.get(key)
        if known is None or known.done():
            loop = asyncio.get_running_loop()
            self._listeners[key] = loop.create_task(self._hear(key), context=contextvars.Context())

    async def _hear(self, key: str) -> None:
        """Wake the line of a key when the store says that there may be room; also right at first, because nobody
        listened between the refusal and now.
        """
        mark, seconds = 0, 0.0
        while self._lines.get(key):
            try:
                mark = await self._engine.wait([limit_topic(key)], seconds, mark)
            except Exception as error:
                log.debug("can't hear of limit %s: %s", key, error)
                await asyncio.sleep(LISTEN_SECONDS)
            seconds = LISTEN_SECONDS
            self._wake(key)
            await asyncio.sleep(LISTEN_PAUSE_SECONDS)
        self._lines.pop(key, None)

    def _end_line(self, key: str) -> None:
        if not self._lines.get(key):
            self._lines.pop(key, None)
            if (listener := self._listeners.pop(key, None)) is not None:
                listener.cancel()
            if (timer := self._timers.pop(key, None)) is not None:
                timer[1].cancel()
