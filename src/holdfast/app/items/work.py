"""Runs a list: items become jobs, the App's worker runs them, and each ended attempt is reported.

Must not run jobs itself, and must not decide about their outcome.
"""

import asyncio
import contextvars
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.app.app import App
from holdfast.app.items.words import NAMED_LIMIT, Counts, Reporter, error_of, in_figures, label_of, name_of, number_of
from holdfast.core.codec import Signature, canonical, parse
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.keys import check_queue, digest
from holdfast.core.lifecycle import SETTLED, STATE_ROWS
from holdfast.core.model import Event, Job, Options, Retry, State, Where
from holdfast.core.references import is_kept_outside
from holdfast.engines.topics import job_topic
from holdfast.jobs.service import JobRequest, history_of
from holdfast.worker.context import ATTEMPT
from holdfast.worker.registry import NO_GENERATOR, is_generator
from holdfast.worker.threads import run_in_thread

LOOK_SECONDS = 0.1
"""How long to wait for a wake-up before checking the items anyway."""


class Work:
    """One call of run_items, and what it has seen of its items so far."""

    def __init__(
        self,
        app: App,
        type: str,
        function: Callable[[Any], Any],
        listed: Mapping[str, Any],
        keyed: bool,
        retry: Retry,
        reporter: Reporter,
    ) -> None:
        self._app = app
        self._type = type
        self._queue = check_queue(type.replace("_", "-"))
        self._function = function
        self._listed = listed
        self._keyed = keyed
        self._options = Options(retry=retry)
        self._reporter = reporter
        self._began: dict[str, tuple[int, int, str]] = {}
        self._held: dict[str, int] = {}
        self._recovered = 0
        self._unstorable = False
        self._job = app.job(name=type, queue=self._queue)(self._handler())

    async def run(self, at_once: int) -> Counts:
        """Submit the new items, run until every item is settled, and return the counts."""
        counts = await self._submit()
        if counts.pending or counts.running:
            try:
                async with self._app.worker(at_once=at_once, queues=[self._queue]):
                    await self._follow()
            except asyncio.CancelledError:
                left = await self._counts()
                self._reporter.close()
                self._reporter.say(f"stopped: {in_figures(left)}; start it again to continue")
                raise
            counts = await self._counts()
        self._reporter.show(counts, ())
        self._reporter.close()
        await self._report_end(counts)
        return counts

    async def _submit(self) -> Counts:
        """Submit the items that aren't in the store yet, and report how many are."""
        known = {job.key: job async for job in self._app.jobs.walk(Where(type=self._type))}
        orders = [
            JobRequest(
                type=self._type,
                queue=self._queue,
                key=key,
                args=self._args(item),
                options=self._options,
            )
            for key, item in self._listed.items()
            if key not in known
        ]
        if orders and not known:
            await self._report_other_lists()
        at_once = self._app.engine.insert_at_once
        for start in range(0, len(orders), at_once):
            await self._app.jobs.submit(orders[start : start + at_once])
        self._reporter.begin(self._app.place(), await self._counts())
        more = sum(job.key not in self._listed and job.state not in SETTLED for job in known.values())
        if more:
            run = "runs" if more == 1 else "run"
            self._reporter.say(f"{number_of(more, 'unfinished item')} of an earlier list {run} too")
        self._held = {job.id: job.version for job in known.values() if job.state is State.ACTIVE}
        # The file engine recovers items when it opens. With other engines upkeep does, and `_check_items` notices.
        self._report_recovered(getattr(self._app.engine, "recovered", 0))
        return await self._counts()

    async def _follow(self) -> None:
        """Report the items' progress until all of them are settled."""
        engine, mark = self._app.engine, 0
        try:
            while True:
                counts = await self._counts()
                await self._check_items()
                if not counts.pending and not counts.running:
                    return
                self._reporter.show(counts, [key for _, _, key in self._began.values()])
                topics = [job_topic(id) for id in (*self._began, *self._held)]
                mark = await engine.wait(topics, LOOK_SECONDS, mark)
        except asyncio.CancelledError:
            if self._began:
                seconds = self._app.settings.grace_seconds
                self._reporter.say(f"stopping: running items have {seconds:g} s to finish; Ctrl-C again stops now")
            raise

    async def _check_items(self) -> None:
        """Report each item whose attempt has ended since the last check, and each item recovered from a crash."""
        now = await self._app.engine.now()
        began = dict(self._began)
        for job in await self._app.engine.get(list(began)):
            if job is None or (job.state is State.ACTIVE and job.epoch == began[job.id][0]):
                continue
            if self._began[job.id] == began[job.id]:  # Otherwise its next attempt has begun and reported this one.
                del self._began[job.id]
                self._reporter.ended(job, began[job.id][1], now)
        for job in await self._app.engine.get(list(self._held)):
            if job is not None and job.version > self._held[job.id]:
                since = self._held.pop(job.id)
                history = await history_of(self._app.engine, job.id)
                self._report_recovered(sum(one.event == Event.LAPSE and one.version > since for one in history))

    async def _counts(self) -> Counts:
        by_name: Counter[str] = Counter()
        for (queue, state), number in (await self._app.engine.count()).items():
            if queue == self._queue:
                by_name[STATE_ROWS[state].checkpoint] += number
        return Counts(
            done=by_name["DONE"],
            failed=by_name["NEEDS_REVIEW"],
            pending=by_name["PENDING"],
            running=by_name["RUNNING"],
            recovered=self._recovered,
        )

    # The handler that the worker runs for one item.

    def _handler(self) -> Callable[[Any], Awaitable[Any]]:
        async def item(value: Any) -> Any:
            attempt = ATTEMPT.get()
            assert attempt is not None, "only a worker runs this"
            job = attempt.job
            if job.id in self._began:  # A short try can end before anybody checks.
                self._reporter.ended(job, self._began[job.id][1], job.claimed_at or 0)
            self._began[job.id] = (job.epoch, job.attempt, job.key or job.id)
            return self._to_store(await self._call(self._argument(job, value)))

        return item

    def _args(self, item: Any) -> str:
        """Return an item as its job stores it. JSON may lose its type, so the function gets the item from the list."""
        return self._job.spec.signature.encode((parse(canonical(item)),), {})

    def _argument(self, job: Job, value: Any) -> Any:
        """Return the function's argument: the item from the list, or the edited item if a person changed it in the
        store.
        """
        item = self._listed.get(job.key or "")
        given = job.digest or digest(job.type, job.args)
        if job.key in self._listed and (self._keyed or given == digest(job.type, self._args(item))):
            return item
        if is_kept_outside(job.args):
            return value
        try:
            (edited,), _ = Signature(self._function).decode(job.args)
        except Invalid:
            raise
        except (TypeError, ValueError, NameError):  # A callable that has no signature, or no type hints.
            return value
        return edited

    async def _call(self, value: Any) -> Any:
        """Call the function, `def` or `async def`, and return its answer."""
        if inspect.iscoroutinefunction(self._function):
            return await self._function(value)
        answer = await run_in_thread(contextvars.copy_context(), lambda: self._function(value))
        return await answer if inspect.isawaitable(answer) else answer

    def _to_store(self, answer: Any) -> Any:
        """Return what to store of an answer: None if it can't be stored. Raise the error of `(False, error)`."""
        if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], bool):
            ok, answer = answer
            if not ok:
                raise answer if isinstance(answer, Exception) else RuntimeError(str(answer))
        if is_generator(answer):  # its function hasn't started to run
            raise Invalid(f"{name_of(self._function)} returned a generator: {NO_GENERATOR}")
        try:
            return parse(canonical(answer))  # Only people read it, so plain JSON values are enough.
        except BadValue as error:
            # The work is done and may have cost money. Running it again would not make the value storable.
            if not self._unstorable:
                self._unstorable = True
                self._reporter.say(
                    f"the results of {name_of(self._function)} can't be stored: {error}; the items count as done"
                )
            return None

    # Reports.

    def _report_recovered(self, number: int) -> None:
        if number:
            self._recovered += number
            self._reporter.say(f"recovered {number_of(number, 'item')} from a crash")

    async def _report_other_lists(self) -> None:
        """Mention the other lists: a renamed function would otherwise start over silently."""
        others = {queue for queue, _ in await self._app.engine.count() if queue.startswith("item.")}
        if others:
            names = ", ".join(sorted(queue.removeprefix("item.").replace("-", "_") for queue in others))
            self._reporter.say(
                f"this is a new list, next to {names}; if it is the same list, pass its name with name=…"
            )

    async def _report_end(self, counts: Counts) -> None:
        self._reporter.say(f"finished: {in_figures(counts)}")
        if not counts.failed:
            return
        number = 0
        async for job in self._app.jobs.walk(Where(type=self._type, states=(State.REVIEW,))):
            number += 1
            if number <= NAMED_LIMIT:
                self._reporter.say(f"  {label_of(job)}: {error_of(job)}")
        if number > NAMED_LIMIT:
            self._reporter.say(f"  and {number - NAMED_LIMIT} more")
        if self._app.engine.guarantees.name == "file":
            self._reporter.say(f'to run one again, set its "status" to PENDING in {self._app.place()} and start again')
