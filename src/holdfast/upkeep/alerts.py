"""Checks the thresholds that an App declares, and tells once when one is reached and once when that is over.

Must not change a job. Every keeper checks those of its own App; the record of a raised alert is compared and set, so
whoever sets it tells, and nobody else does, whichever worker leads or ends.
"""

from collections.abc import Callable, Mapping, Sequence

from holdfast.core.alerts import ALERT, Alert, AlertEvent, Raised, event_of, raised_in
from holdfast.core.model import Conflict, Record, State, Time
from holdfast.engines.contract import Engine
from holdfast.jobs.queue_ages import oldest_due_ms
from holdfast.safe_text import logger

log = logger("holdfast.alerts")

Counts = Mapping[tuple[str, State], int]


class Alerts:
    """The alerts of one App. `tell` lets its hooks be called."""

    def __init__(self, engine: Engine, alerts: Sequence[Alert], tell: Callable[[AlertEvent], None]) -> None:
        self._engine = engine
        self._alerts = alerts
        self._tell = tell

    async def check(self) -> None:
        """Compare all values with their thresholds. Raised alerts that are no longer declared end here, too."""
        if not self._alerts:
            return
        records = {record.name: record for record in await self._engine.records(ALERT)}
        standing = [raised.alert for record in records.values() if (raised := raised_in(record)) is not None]
        counts, now = await self._engine.count(), await self._engine.now()
        for alert in dict.fromkeys((*self._alerts, *standing)):
            value = await self._value(alert, counts, now)
            record = records.get(alert.record)
            if value >= alert.threshold and record is None and alert in self._alerts:
                await self._raise(alert, value, now)
            elif value < alert.threshold and record is not None:
                await self._end(alert, record, value, now)

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
