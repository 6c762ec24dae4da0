"""Handlers of acts on many jobs. Must not act itself: the act is a job, which workers run."""

from holdfast.core.codec import canonical
from holdfast.jobs.bulk_acts import Act, submit_act
from holdfast.jobs.selections import Selection
from holdfast.jobs.views.pages.bulk import BulkPreview, BulkProgress, preview_bulk, view_bulk
from holdfast.server.api.looks import id_of
from holdfast.server.api.operation import Ask, Operation
from holdfast.server.api.requests import BulkRequest, ReasonRequest
from holdfast.server.auth import ANY, check_scope

SCOPES = {"cancel": "act", "replay": "review", "discard": "review", "resolve": "review"}


def _act(ask: Ask) -> Act:
    body: BulkRequest = ask.body
    where = body.where
    chosen = Selection(
        ids=where.ids,
        states=where.state,
        queue=where.queue,
        type=where.type,
        error=where.error,
        step=where.step,
        tag=where.tag,
    )
    return Act(body.act, chosen, by=ask.by, reason=body.reason, result=canonical(body.result))


async def preview(ask: Ask) -> BulkPreview:
    """Say what an act would do."""
    return await preview_bulk(ask.jobs, _act(ask))


async def start(ask: Ask) -> BulkProgress:
    """Start an act. A token needs the scope that the act on one job needs."""
    check_scope(ask.call.principal, SCOPES[ask.body.act])
    job = await submit_act(ask.jobs, _act(ask))
    return await view_bulk(ask.jobs, job.id)


async def progress(ask: Ask) -> BulkProgress:
    """Read how far an act is."""
    return await view_bulk(ask.jobs, await id_of(ask))


async def stop(ask: Ask) -> BulkProgress:
    """Stop an act. What it has done stays done. A token needs the scope of the act, or the one that cancels any job."""
    found, principal = await view_bulk(ask.jobs, await id_of(ask)), ask.call.principal
    if not principal.may("act"):
        check_scope(principal, SCOPES[found.act])
    await ask.jobs.cancel(found.id, by=ask.by, reason=ask.body.reason)
    return await view_bulk(ask.jobs, found.id)


BULK = (
    Operation("POST", "/bulk/preview", "preview_bulk", "Say what an act on many jobs would do", "read", BulkPreview,
              preview, body=BulkRequest),
    Operation("POST", "/bulk", "start_bulk", "Act on all jobs that match; a durable job does it. It needs the "
              "scope of the act on one job: `act` to cancel, otherwise `review`", ANY, BulkProgress, start,
              body=BulkRequest, status=202),
    Operation("GET", "/bulk/{id}", "get_bulk", "Read how far an act on many jobs is", "read", BulkProgress, progress),
    Operation("POST", "/bulk/{id}/stop", "stop_bulk", "Stop an act on many jobs. It needs the scope of the act, or "
              "`act`, which cancels any job", ANY, BulkProgress, stop, body=ReasonRequest),
)  # fmt: skip
"""The calls for acts on many jobs."""
