"""The routes of the Open Job Spec, with the scope that each needs. Must not hold a handler."""

from holdfast.server.ojs import (
    admin,
    admin_stats,
    admin_workers,
    cron,
    dead_letters,
    events,
    jobs,
    limits,
    live,
    manifest,
    queues,
    reports,
    reset,
    schemas,
    workers,
    workflows,
)
from holdfast.server.ojs.problems import show_problem
from holdfast.server.routes import ANY, BODY_BYTES, OPEN, Family, Handler, Route

BATCH_BYTES = 16 << 20
"""The largest body with many jobs, or with a result. The answer to a larger one names this limit."""

V1 = "/ojs/v1"


def _get(path: str, handler: Handler, scope: str = "read", *, waits: bool = False) -> Route:
    return Route("GET", V1 + path, handler, scope, is_stream=waits)


def _post(path: str, handler: Handler, scope: str, body_bytes: int = BODY_BYTES, *, waits: bool = False) -> Route:
    return Route("POST", V1 + path, handler, scope, body_bytes=body_bytes, is_stream=waits)


def _put(path: str, handler: Handler, scope: str) -> Route:
    return Route("PUT", V1 + path, handler, scope, body_bytes=BODY_BYTES)


def _delete(path: str, handler: Handler, scope: str) -> Route:
    return Route("DELETE", V1 + path, handler, scope, body_bytes=BODY_BYTES)


_JOBS = (
    _post("/jobs", jobs.submit, "submit"),
    _post("/jobs/batch", jobs.submit_batch, "submit", BATCH_BYTES),
    _post("/jobs/results", reports.get_results, "read"),
    _get("/jobs/{id}", jobs.get_job),
    _delete("/jobs/{id}", jobs.cancel_job, "act"),
    _post("/jobs/{id}/cancel", jobs.cancel_job, "act"),
    _post("/jobs/{id}/activate", jobs.activate_job, "act"),
    _get("/jobs/{id}/history", jobs.get_history),
    _get("/jobs/{id}/result", reports.get_result),
    _get("/jobs/{id}/progress", reports.get_progress),
    _get("/jobs/{id}/events", live.job_events, waits=True),
    _get("/jobs/{id}/progress/stream", live.progress_stream, waits=True),
    _get("/jobs/{id}/result/stream", live.result_stream, waits=True),
    _get("/jobs/{id}/checkpoint", reports.get_checkpoint, ANY),
    _get("/jobs/{id}/steps", reports.list_steps, ANY),
)

_WORK = (
    _post("/workers/fetch", workers.fetch, "work"),
    _post("/jobs/fetch", workers.fetch, "work"),
    _post("/workers/ack", workers.ack, "work", BATCH_BYTES),
    _post("/jobs/{id}/ack", workers.ack, "work", BATCH_BYTES),
    _post("/workers/nack", workers.nack, "work"),
    _post("/jobs/{id}/nack", workers.nack, "work"),
    _post("/workers/heartbeat", workers.heartbeat, "work"),
    _post("/workers/beat", workers.heartbeat, "work"),
    _post("/workers/progress", reports.save_progress, "work"),
    _put("/jobs/{id}/progress", reports.save_progress, "work"),
    _post("/jobs/{id}/progress", reports.save_progress, "work"),
    _put("/jobs/{id}/checkpoint", reports.save_checkpoint, "work"),
    _post("/jobs/{id}/checkpoint", reports.save_checkpoint, "work"),
    _delete("/jobs/{id}/checkpoint", reports.delete_checkpoint, "work"),
    _post("/checkpoints/{id}", reports.save_checkpoint, "work"),
    _get("/checkpoints/{id}", reports.get_checkpoint, ANY),
    _get("/checkpoints/{id}/resume", reports.get_checkpoint, ANY),
    _delete("/checkpoints/{id}", reports.delete_checkpoint, "work"),
    _post("/jobs/{id}/steps", reports.record_step, "work"),
    _get("/workers/{id}/health", workers.worker_health),
)

_QUEUES = (
    _get("/queues", queues.list_queues),
    _get("/queues/{name}", queues.queue_stats),
    _get("/queues/{name}/stats", queues.queue_stats),
    _get("/queues/{name}/events", live.queue_events, waits=True),
    _post("/queues/{name}/pause", queues.pause_queue, "act"),
    _post("/queues/{name}/resume", queues.resume_queue, "act"),
    _get("/dead-letter", dead_letters.list_dead),
    _get("/dead-letter/stats", dead_letters.dead_stats),
    _get("/dead-letter/{id}", dead_letters.get_dead),
    _post("/dead-letter/retry", dead_letters.retry_many, "review"),
    _post("/dead-letter/{id}/retry", dead_letters.retry_dead, "review"),
    _delete("/dead-letter/{id}", dead_letters.delete_dead, "review"),
    _delete("/dead-letter", dead_letters.purge, "review"),
    _get("/cron", cron.list_cron),
    _post("/cron", cron.put_cron, "act"),
    _get("/cron/{name}", cron.get_cron),
    _delete("/cron/{name}", cron.delete_cron, "act"),
    _post("/cron/{name}/trigger", cron.trigger_cron, "submit"),
    _get("/workflows", workflows.list_workflows),
    Route("POST", f"{V1}/workflows", workflows.start_workflow, "submit", body_bytes=BODY_BYTES),
    _get("/workflows/{id}", workflows.get_workflow),
    _delete("/workflows/{id}", workflows.cancel_workflow, "act"),
    _get("/rate-limits", limits.list_rates),
    _get("/rate-limits/{key}", limits.get_rate),
    _put("/rate-limits/{key}", limits.put_rate, "admin"),
    _get("/events", events.list_events),
    _get("/events/stream", live.channel_events, waits=True),
)

_ADMIN = (
    _get("/admin/queues", admin.list_queues),
    _get("/admin/queues/{name}", admin.get_queue),
    _post("/admin/queues/{name}/pause", admin.pause_queue, "admin"),
    _post("/admin/queues/{name}/resume", admin.resume_queue, "admin"),
    _put("/admin/queues/{name}/config", admin.configure_queue, "admin"),
    _delete("/admin/queues/{name}/jobs", admin.purge_queue, "admin"),
    _get("/admin/jobs", admin.list_jobs),
    _get("/admin/jobs/{id}", admin.get_job),
    _post("/admin/jobs/{id}/cancel", jobs.cancel_job, "admin"),
    _post("/admin/jobs/{id}/retry", admin.retry_job, "admin"),
    _post("/admin/jobs/bulk/retry", admin.bulk_retry, "admin"),
    _post("/admin/jobs/bulk/cancel", admin.bulk_cancel, "admin"),
    _post("/admin/jobs/bulk/delete", admin.bulk_delete, "admin"),
    _get("/admin/workers", admin_workers.list_workers),
    _get("/admin/workers/{id}", admin_workers.get_worker),
    _post("/admin/workers/{id}/quiet", admin_workers.quiet_worker, "admin"),
    _delete("/admin/workers/{id}", admin_workers.end_worker, "admin"),
    _get("/admin/stats", admin_stats.stats),
    _get("/admin/stats/history", admin_stats.stats_history),
    _get("/admin/dead-letter", admin.list_dead),
    _get("/admin/dead-letter/stats", dead_letters.dead_stats),
    _delete("/admin/dead-letter", dead_letters.purge, "review"),
    _post("/admin/dead-letter/{id}/retry", dead_letters.retry_dead, "review"),
    _delete("/admin/dead-letter/{id}", admin.delete_dead, "review"),
    _get("/admin/schemas", schemas.list_schemas),
    _get("/admin/schemas/{type}", schemas.list_schemas),
    _get("/admin/schemas/{type}/{version}", schemas.get_schema),
    _put("/admin/schemas/{type}/{version}", schemas.put_schema, "admin"),
    _delete("/admin/schemas/{type}/{version}", schemas.delete_schema, "admin"),
    _get("/admin/system/config", admin.config, "admin"),
    Route("POST", f"{V1}/admin/reset", reset.reset, "admin", body_bytes=BODY_BYTES, is_hook=True),
)

_ABOUT = (
    Route("GET", "/ojs/manifest", manifest.manifest, OPEN),
    Route("GET", f"{V1}/health", manifest.health, OPEN),
)

OJS = Family("/ojs", (*_ABOUT, *_JOBS, *_WORK, *_QUEUES, *_ADMIN), show_problem)
