"""The OpenAPI document says what the routes do, and every reference in it leads somewhere."""

import json
import re

from holdfast.jobs.tokens import SCOPES
from holdfast.server.api.operations import API, OPERATIONS, document

DOCUMENT = json.loads(document())


def test_every_route_is_in_the_document():
    routes = {(route.method.lower(), route.path) for route in API.routes if not route.path.endswith("openapi.json")}

    assert routes == {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}


def test_every_reference_leads_to_a_schema():
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', document().decode()))

    assert "JobPage" in named
    assert named <= DOCUMENT["components"]["schemas"].keys()


def test_every_call_has_a_name_of_its_own_a_summary_and_a_scope():
    assert len({one.name for one in OPERATIONS}) == len(OPERATIONS)
    for one in OPERATIONS:
        assert one.scope in SCOPES or one.name in ("read_time", "start_bulk", "stop_bulk")
        assert one.summary[0].isupper()
        assert not one.summary.endswith(".")


def test_every_type_says_what_it_is():
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema.get("description") or "enum" in schema, name


def test_a_query_is_described_parameter_by_parameter():
    parameters = {one["name"]: one for one in DOCUMENT["paths"]["/api/v1/jobs"]["get"]["parameters"]}

    assert parameters["limit"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 500, "default": 100}
    assert "review" in parameters["state"]["schema"]["items"]["enum"]
    assert not parameters["queue"]["required"]


def test_the_headers_that_a_call_reads_and_the_body_of_an_upload_are_described():
    def headers(path: str, method: str) -> list[str]:
        return [one["name"] for one in DOCUMENT["paths"][path][method]["parameters"] if one["in"] == "header"]

    assert headers("/api/v1/jobs", "post") == ["Idempotency-Key"]
    assert headers("/api/v1/jobs/{id}/events", "get") == ["Last-Event-ID"]
    assert "application/octet-stream" in DOCUMENT["paths"]["/api/v1/blobs/{sha256}"]["put"]["requestBody"]["content"]
