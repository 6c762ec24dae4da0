"""The table of routes finds a route exactly, and every route says who may ask."""

import pytest
from starlette.responses import Response

from holdfast.jobs.tokens import SCOPES
from holdfast.server.auth import ANY, OPEN
from holdfast.server.families import FAMILIES
from holdfast.server.routes import Family, Route, Table

OPEN_ROUTES = {"/health", "/ready", "/ojs/manifest", "/ojs/v1/health", "/login", "/logout"}
"""What needs no token; static files and callbacks besides."""


async def answer(call):
    return Response()


def table(*paths: str) -> Table:
    return Table([Family("/", tuple(Route("GET", path, answer, "read") for path in paths))])


def test_a_path_is_found_with_its_parameters():
    routes = table("/jobs", "/jobs/{id}", "/jobs/{id}/steps/{step:path}", "/jobs/bulk")

    assert routes.find("/jobs").params == {}
    assert routes.find("/jobs/7").params == {"id": "7"}
    assert routes.find("/jobs/bulk").methods["GET"].path == "/jobs/bulk"
    assert routes.find("/jobs/7/steps/a/b").params == {"id": "7", "step": "a/b"}


@pytest.mark.parametrize(
    "path", ["/jobs/", "//jobs", "/Jobs", "/jobs//steps/x", "jobs", "", "/jobs/7/", "/jobs/../jobs"]
)
def test_no_other_spelling_of_a_path_is_found(path):
    assert table("/jobs", "/jobs/{id}", "/jobs/{id}/steps/{step:path}").find(path) is None


def test_a_route_can_not_be_declared_twice():
    with pytest.raises(AssertionError, match="twice"):
        table("/jobs/{id}", "/jobs/{id}")


def test_the_longest_prefix_answers_for_a_path():
    routes = Table([Family("/", ()), Family("/ojs", ()), Family("/ojs/v1", ())])

    assert [routes.family_of(path).prefix for path in ("/x", "/ojs", "/ojs/v1/x", "/ojsx")] == [
        "/", "/ojs", "/ojs/v1", "/",
    ]  # fmt: skip


def test_every_route_needs_a_scope_or_is_one_of_the_open_ones():
    routes = Table(FAMILIES, hooks=True).routes

    assert {route.scope for route in routes} <= {*SCOPES, OPEN, ANY}
    for route in routes:
        if route.scope == OPEN:
            assert route.path in OPEN_ROUTES or route.path.startswith(("/static/", "/callback/")), route.path
        if route.method == "GET":
            assert route.scope in ("read", OPEN, ANY, "admin"), f"{route.path} reads, so it needs the scope read"
