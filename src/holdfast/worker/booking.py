"""Tells a job's budget what was spent outside its steps' own permits: between steps, and in steps that were cut.

Must not decide whether a step may start (`permits`).
"""

from holdfast.jobs.budgets import charge
from holdfast.worker.attempt import Attempt


def is_unbooked(attempt: Attempt) -> bool:
    """Whether the job's budget doesn't know yet of something that was spent."""
    if not attempt.job.options.budget:
        return False
    ledger = attempt.progress.ledger
    return ledger is not None and ledger.has_unbooked()


async def book(attempt: Attempt) -> None:
    """Take from the job's budget what was spent since. Then record that: a next lease must not take it again."""
    if not is_unbooked(attempt):
        return
    ledger = attempt.progress.keep_ledger()
    amounts = ledger.take_unbooked()
    await attempt.persist(lambda: charge(attempt.engine, attempt.job, amounts))
    records = attempt.progress.final_records(attempt.now())
    await attempt.persist(lambda: attempt.engine.record(records))
