"""The fields of jobs for AI agents: kept as they are, but checked for what they can't be. Must not run an agent."""

from collections.abc import Mapping
from typing import Any

from holdfast.server.problems import Problem

PREFIX = "ext_agent_"
MOST_DEPTH = 10
"""How deep agents may delegate, if a job doesn't say."""


def check_agent_fields(body: Mapping[str, Any]) -> None:
    """Refuse a temperature out of range, a negative number, and a delegation that is too deep."""
    if not any(name.startswith(PREFIX) for name in body):
        return
    _number(body, "temperature", 2)
    for name in ("max_tokens", "token_budget"):
        _number(body, name, None)
    depth = _number(body, "delegation_depth", None)
    most = _number(body, "max_delegation_depth", None)
    if depth is not None and 0 < depth >= (MOST_DEPTH if most is None else most):
        raise _refusal("MAX_DELEGATION_DEPTH", "delegation_depth", f"{depth:g} delegations are as deep as it may go")


def _number(body: Mapping[str, Any], name: str, most: float | None) -> float | None:
    value = body.get(PREFIX + name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value < 0 or (most is not None and value > most):
        upto = "" if most is None else f", up to {most:g}"
        raise _refusal("INVALID_PARAMETER", name, f"give a number from 0{upto}")
    return float(value)


def _refusal(code: str, name: str, detail: str) -> Problem:
    return Problem(400, f"AGENT_{code}", f"{PREFIX}{name}: {detail}", field=PREFIX + name)
