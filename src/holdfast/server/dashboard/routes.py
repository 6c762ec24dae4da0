"""The dashboard's routes. Must not do anything: `files` answers with what is built, `sessions` logs in and out."""

from starlette.responses import RedirectResponse, Response

from holdfast.server.call import Call
from holdfast.server.dashboard.files import page, static
from holdfast.server.dashboard.sessions import log_in, log_out, login_address, session
from holdfast.server.problems import Problem, problem_details
from holdfast.server.routes import ANY, OPEN, Family, Route

PAGES = (
    *("/", "/jobs", "/review", "/queues", "/workers", "/schedules", "/lifecycle"),
    *("/jobs/{id}", "/review/{id}", "/queues/{name}", "/workers/{name}"),
)
"""The paths of pages. All of them are the same file."""

LOGIN_BYTES = 4_096


def show_error(problem: Problem, call: Call) -> Response:
    """Send a browser that has no valid token to the login page. Programs get problem details, as everywhere."""
    if problem.status == 401 and call.route in PAGES and "text/html" in call.headers.get("accept", ""):
        return RedirectResponse(login_address(call), 303)
    return problem_details(problem, call.request_id)


DASHBOARD = Family(
    "/",
    (
        *(Route("GET", path, page, ANY) for path in PAGES),
        Route("GET", "/login", page, OPEN),
        Route("GET", "/static/{name}", static, OPEN),
        Route("POST", "/login", log_in, OPEN, body_bytes=LOGIN_BYTES),
        Route("POST", "/logout", log_out, OPEN),
        Route("GET", "/session", session, ANY),
    ),
    show=show_error,
)
