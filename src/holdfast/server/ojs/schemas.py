"""Schemas of job types, kept for their versions. They describe jobs; nothing is checked against them."""

import re
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.core.canonical import canonical
from holdfast.core.errors import NotFound
from holdfast.core.keys import check_type, digest
from holdfast.core.model import Conflict, Record
from holdfast.server.call import Call
from holdfast.server.ojs.problems import bad
from holdfast.server.ojs.service import Ojs, ojs_of, read_object, reply
from holdfast.server.ojs.vocabulary import written_time
from holdfast.server.problems import Problem

SCHEMAS = "ojs/schema/"
"""A record `ojs/schema/TYPE/VERSION` holds a schema."""

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


async def put_schema(call: Call) -> Response:
    """Keep the schema of a version of a job type. A version that has one keeps it."""
    ojs, name = ojs_of(call), _name(call)
    body = await read_object(call)
    schema = body.get("schema")
    if not isinstance(schema, dict):
        raise bad("schema", "give a JSON object")
    answer = await ojs.engine.put_record(name, canonical(schema), 0)
    if isinstance(answer, Conflict):
        raise Problem(409, "duplicate", f"{_words(name)} has a schema already; register another version")
    return reply(_shown(answer), 201)


async def get_schema(call: Call) -> Response:
    """Return a schema."""
    ojs, name = ojs_of(call), _name(call)
    return reply(_shown(await _find(ojs, name)))


async def delete_schema(call: Call) -> Response:
    """Remove a schema."""
    ojs, name = ojs_of(call), _name(call)
    record = await _find(ojs, name)
    await ojs.engine.put_record(name, None)
    return reply({**_shown(record), "deleted": True})


async def list_schemas(call: Call) -> Response:
    """List the schemas, of one type or of all."""
    type = call.path_params.get("type")
    prefix = SCHEMAS + (f"{check_type(type)}/" if type is not None else "")
    shown = [_shown(record) for record in await ojs_of(call).engine.records(prefix)]
    return reply({"items": shown, "schemas": shown, "pagination": {"total": len(shown), "page": 1}})


async def _find(ojs: Ojs, name: str) -> Record:
    for record in await ojs.engine.records(name):
        if record.name == name:
            return record
    raise NotFound(f"{_words(name)} has no schema")


def _name(call: Call) -> str:
    version = call.path_params["version"]
    if not _VERSION.fullmatch(version):
        raise bad("version", "give letters, digits and . _ -")
    return f"{SCHEMAS}{check_type(call.path_params['type'])}/{version}"


def _words(name: str) -> str:
    _, _, type, version = name.split("/")
    return f"job type {type}, version {version},"


def _shown(record: Record) -> dict[str, Any]:
    _, _, type, version = record.name.split("/")
    return {
        "type": type,
        "version": int(version) if version.isdecimal() and len(version) < 10 else version,
        "schema": msgspec.json.decode(record.value),
        "checksum": digest(record.value),
        "created_at": written_time(record.at),
    }
