"""Checks the thresholds that an App declares, and tells once when one is reached and once when that is over.

Must not change a job. Every keeper checks those of its own App; the record of a raised alert is compared and set, so
whoever sets it tells, and nobody else does, whichever worker leads or ends. An alert of other code is left to that code
for a while, whose hooks want to hear that it is over.
"""

from collections.abc import Callable, Mapping, Sequence

from holdfast.core.alerts import ALERT, Alert, AlertEvent, Raised, event_of, raised_in
from holdfast.core.model import Conflict, Record, State, Time
from holdfast.engines.contract import Engine
from holdfast.jobs.queue_ages import oldest_due_ms
from holdfast.safe_text import logger

log = logger("holdfast.alerts")

LEFT_MS = 60_000
"""How long an alert that is over is left to those who declare it. Then nobody does any more, and anybody ends it."""

Counts = Mapping[tuple[str, State], int]


class Alerts:
    """The alerts of one App. `tell` lets its hooks be called."""

    def __init__(self, engine: Engine, alerts: Sequence[Alert], tell: Callable[[AlertEvent], None]) -> None:
        self._engine = engine
        self._alerts = alerts
        self._tell = tell
        self._left: dict[str, Time] = {}
        """Since when alerts of other code were seen to be over, by the names of their records."""

    async def check(self, *, leads: bool = False) -> None:
        """Compare all values with their thresholds. Raised alerts that are no longer declared end here, too.

        The leader looks for these even if its App declares none.
        """
        if not (self._alerts or leads):
            return
        records = {record.name: record for record in await self._engine.records(ALERT)}
        if not (self._alerts or records):
            return
        standing = [raised.alert for record in records.values() if (raised := raised_in(record)) is not None]
        counts, now = await self._engine.count(), await self._engine.now()
        before, self._left = self._left, {}
        for alert in dict.fromkeys((*self._alerts, *standing)):
            value = await self._value(alert, counts, now)
            record = records.get(alert.record)
            if value >= alert.threshold and record is None and alert in self._alerts:
                await self._raise(alert, value, now)
            elif value < alert.threshold and record is not None:
                since = before.get(alert.record, now)
                if alert in self._alerts or now - since >= LEFT_MS:
                    await self._end(alert, record, value, now)
                else:
                    self._left[alert.record] = since

    async def _raise(self, alert: Alert, value: int, now: Time) -> None:
        raised = Raised(alert, now, value)
        if isinstance(await self._engine.put_record(alert.record, raised.text(), 0), Conflict):
            return  # another worker tells it
        event = event_of(raised, value, now, is_over=False)
        log.warning("alert: %s", event)
        self._tell(event)

    async def _end(self, alert: Alert, record: Record, value: int, now: Time) -> None:
        if isinstance(await self._engine.put_record(alert.record, None, record.version), Conflict):
            return
        event = event_of(raised_in(record) or Raised(alert, record.at, value), value, now, is_over=True)
        log.info("alert over: %s", event)
        self._tell(event)

    async def _value(self, alert: Alert, counts: Counts, now: Time) -> int:
        if alert.kind == "review":
            return sum(
                number
                for (queue, state), number in counts.items()
                if state is State.REVIEW and alert.queue in ("", queue)
            )
        depth = counts.get((alert.queue, State.AVAILABLE), 0)
        return depth if alert.kind == "depth" or not depth else await oldest_due_ms(self._engine, alert.queue, now)
