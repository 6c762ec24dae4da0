"""What many jobs have spent, for lists of jobs. Must not change anything.

A job's status says the same of one job (`status`).
"""

from collections.abc import Sequence
from typing import Any

from holdfast.core.model import Job, Spending, State
from holdfast.core.spending import in_words, plain, spending_in, total_of
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import SPENDING_PATH


async def spending_of(jobs: Jobs, page: Sequence[Job]) -> dict[str, Spending]:
    """Return what these jobs have spent, by id, with one read for all; who has spent nothing is left out.

    For a running job, its worker's last report counts.
    """
    known = await jobs.engine.steps_under_each([job.id for job in page if job.epoch], SPENDING_PATH)
    found = {record.job: spending_in(record) for record in known if record.path == SPENDING_PATH}
    leases = {(job.id, job.epoch) for job in page if job.state is State.ACTIVE}
    for worker in await jobs.workers() if leases else ():
        for one in worker.running:
            if one.spending is not None and (one.job, one.epoch) in leases:
                found[one.job] = one.spending
    return {id: spending for id, spending in found.items() if total_of(spending) or spending.saved}


def spending_shape(spending: Spending) -> dict[str, Any]:
    """Return as JSON what a job has spent, wasted and saved."""
    return {"spent": plain(total_of(spending)), "wasted": plain(spending.wasted), "saved": plain(spending.saved)}


def spending_words(spending: Spending) -> str:
    """Say in a few words what a job has spent: "$1.84 ($0.20 wasted, $3.10 saved)"."""
    wasted, saved = in_words(spending.wasted), in_words(spending.saved)
    parts = ", ".join([f"{wasted} wasted"] * bool(wasted) + [f"{saved} saved"] * bool(saved))
    return f"{in_words(total_of(spending)) or '–'}" + (f" ({parts})" if parts else "")
