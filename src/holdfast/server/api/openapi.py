"""The OpenAPI 3.1 document, made from the operations and their types. Must not say anything that a type could say."""

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

import holdfast
from holdfast.jobs.tokens import SCOPES
from holdfast.server.api.operation import PREFIX, Operation
from holdfast.server.auth import ANY

REFERENCE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


class ProblemDetails(Struct, frozen=True, kw_only=True):
    """An error, as RFC 9457 says. `detail` says what happened, to which thing, and what to do."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str


def openapi_of(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the OpenAPI document of these calls."""
    operations = list(operations)
    types = {one.answer for one in operations if _is_struct(one.answer)}
    types |= {one.body for one in operations if one.body is not None} | {ProblemDetails}
    _, schemas = msgspec.json.schema_components(sorted(types, key=lambda one: one.__name__), ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(_PARAMETER.sub(r"{\1}", PREFIX + one.path), {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "Holdfast",
            "version": holdfast.__version__,
            "description": "Durable jobs: submit, search, follow and decide. Times are UTC, durations milliseconds.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "../.."}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `holdfast token create`. Scopes: "
                    + "; ".join(f"{name}: {words}" for name, words in SCOPES.items()),
                }
            },
        },
    }


def _is_struct(answer: Any) -> bool:
    return isinstance(answer, type) and issubclass(answer, Struct)


def _operation(one: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {one.media: {"schema": _schema(one.answer)}}
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "parameters": [*_path_parameters(one.path), *_query_parameters(one), *_header_parameters(one)],
        "responses": {
            str(one.status): {"description": _about(one.answer), "content": content},
            "default": {
                "description": "What went wrong, and what to do.",
                "content": {"application/problem+json": {"schema": {"$ref": REFERENCE.format(name="ProblemDetails")}}},
            },
        },
        "security": [{"token": [] if one.scope == ANY else [one.scope]}],
        "x-scope": one.scope,
    }
    if one.body is not None:
        schema = {"$ref": REFERENCE.format(name=one.body.__name__)}
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if one.takes:
        found["requestBody"] = {"required": True, "content": {one.takes: {"schema": {}}}}
    return found


def _schema(answer: Any) -> Mapping[str, Any]:
    return {"$ref": REFERENCE.format(name=answer.__name__)} if _is_struct(answer) else {}


def _about(answer: Any) -> str:
    """Return the first line of a type's docstring."""
    return (inspect.getdoc(answer) or "").partition("\n")[0] if _is_struct(answer) else "The answer."


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]


def _query_parameters(one: Operation) -> list[dict[str, Any]]:
    if one.query is None:
        return []
    schemas = msgspec.json.schema_components([one.query], ref_template=REFERENCE)[1]
    shape = schemas[one.query.__name__]
    required = set(shape.get("required", ()))
    found = []
    for name, schema in shape["properties"].items():
        own = _inlined(schema, schemas)
        about = own.pop("description", "")
        found.append({"name": name, "in": "query", "required": name in required, "description": about, "schema": own})
    return found


def _header_parameters(one: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": about, "schema": {"type": "string"}}
        for name, about in one.headers.items()
    ]


def _inlined(schema: Any, schemas: Mapping[str, Any]) -> Any:
    """Return a schema with its references replaced: a query's types are small."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(schemas[schema["$ref"].rpartition("/")[2]], schemas)
        return {name: _inlined(one, schemas) for name, one in schema.items()}
    return [_inlined(one, schemas) for one in schema] if isinstance(schema, list) else schema
