"""Checks the schedules: which don't fire, or whose last tick had no job. Must not repair anything."""

from holdfast.core.schedules import SCHEDULE, schedule_in
from holdfast.jobs.checkup.finding import Finding, Level
from holdfast.jobs.schedule_views import list_schedules
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.text import one_line, plural

NAMED = 20
"""How many schedules with trouble are named."""


async def check_schedules(jobs: Jobs) -> list[Finding]:
    """Report schedules with trouble, each with what to do. A store without schedules gets no line."""
    records = await jobs.engine.records(SCHEDULE)
    if not records:
        return []
    unreadable = [one.name.removeprefix(SCHEDULE) for one in records if schedule_in(one) is None]
    wrong = [
        f"{name}: its record can't be read; remove it (holdfast schedules remove), and put or declare it again"
        for name in unreadable
    ]
    wrong += [f"{one.name}: {one.trouble}" for one in await list_schedules(jobs.engine) if one.trouble]
    if not wrong:
        return [Finding("schedules", Level.OK, f"{plural(len(records), 'schedule')}, none in trouble")]
    findings = [Finding("schedules", Level.WARN, one_line(text, 500)) for text in wrong[:NAMED]]
    if len(wrong) > NAMED:
        findings.append(Finding("schedules", Level.WARN, f"and {len(wrong) - NAMED:,} more; see holdfast schedules"))
    return findings
