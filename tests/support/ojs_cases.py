"""Runs conformance cases of the Open Job Spec, which are data: requests, and what their answers must be.

The project has no cases of its own: `OJS_SUITES` names a folder with them. Everything that a case asserts is checked; a
word that this harness doesn't know is a failure, not a pass.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

MEDIA_TYPE = "application/openjobspec+json"
LONG_MS = 20_000
"""Cases that wait longer than this run only with OJS_LONG=1."""


def suites() -> Path | None:
    """The folder with the cases, if the environment names one that exists."""
    folder = Path(os.environ.get("OJS_SUITES") or "/nowhere")
    return folder if folder.is_dir() else None


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """All cases, each with its path."""
    for path in sorted(folder.rglob("*.json")):
        yield str(path.relative_to(folder)), json.loads(path.read_text())


def waits_ms(case: Mapping[str, Any]) -> int:
    return sum(step.get("delay_ms", 0) + step.get("duration_ms", 0) for step in case["steps"])


class Failed(Exception):
    """What a case expected and didn't get."""


async def run_case(case: Mapping[str, Any], client: httpx.AsyncClient) -> None:
    """Run a case, or raise Failed with its first failure."""
    run = _Run(client)
    steps = list(case["steps"])
    while steps:
        step = steps.pop(0)
        twin = next((one for one in steps if one.get("parallel_with") == step.get("id")), None)
        together = [step]
        if step.get("parallel_with") and twin is not None:
            steps.remove(twin)
            together.append(twin)
        await asyncio.gather(*map(run.step, together))


class _Run:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._bodies: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}

    async def step(self, step: Mapping[str, Any]) -> None:
        name = step.get("id", "a step")
        await asyncio.sleep((step.get("delay_ms", 0) + step.get("duration_ms", 0)) / 1_000)
        try:
            match step["action"]:
                case "WAIT":
                    return
                case "ASSERT":
                    self._assert_across(step["assertions"])
                case _:
                    for _ in range(step.get("repeat", 1)):
                        await self._request(name, step)
        except Failed as failure:
            raise Failed(f"{name}: {failure}") from None

    async def _request(self, name: str, step: Mapping[str, Any]) -> None:
        method, path, body = self._meaning(step)
        headers = {**({"Content-Type": MEDIA_TYPE} if body is not None else {}), **step.get("headers", {})}
        content = step["raw_body"] if "raw_body" in step else None if body is None else json.dumps(body)
        answer = await self._client.request(method, path, headers=headers, content=content)
        try:
            got = answer.json()
        except ValueError:
            got = None
        self._bodies[name] = got
        is_abstract = "path" not in step
        job = got["job"] if is_abstract and isinstance(got, dict) and isinstance(got.get("job"), dict) else got
        for kept, where in {**step.get("capture", {}), **step.get("captures", {})}.items():
            self._kept[kept] = find(got, where)
        for kept, where in step.get("store", {}).items():
            self._kept[kept] = find(job, where)
        self._check(answer, got, step.get("assertions", {}))
        self._expect(answer, got, job, step.get("expect", {}))

    def _meaning(self, step: Mapping[str, Any]) -> tuple[str, str, Any]:
        """The request that a step means. The abstract ones name an operation instead of a path."""
        if "path" in step:
            return step["action"], str(self._filled(step["path"])), self._filled(step.get("body"))
        asked = self._filled(step.get("request", {}))
        match step["action"]:
            case "push":
                job = {key: value for key, value in asked.items() if key != "queue"}
                queue = {"queue": asked["queue"]} if "queue" in asked else {}
                return "POST", "/ojs/v1/jobs", {**job, "options": {**job.get("options", {}), **queue}}
            case "get":
                return "GET", f"/ojs/v1/jobs/{asked['id']}", None
            case "fetch":
                return "POST", "/ojs/v1/workers/fetch", asked
            case "ack" | "nack" as verb:
                return "POST", f"/ojs/v1/workers/{verb}", {**asked, "job_id": asked.get("id", asked.get("job_id"))}
        raise Failed(f"unknown action {step['action']}")

    # What the answers must be.

    def _check(self, answer: httpx.Response, got: Any, wanted: Mapping[str, Any]) -> None:
        for word, want in wanted.items():
            match word:
                case "status":
                    check_status(want, answer)
                case "status_in" | "status_one_of":
                    check_status(list(want), answer)
                case "headers":
                    for name, matcher in want.items():
                        check(matcher, answer.headers.get(name), name)
                case "body":
                    self._check_body(got, want)
                case "body_absent":
                    for path in want:
                        check("absent", find(got, path), path)
                case "body_contains":
                    for text in want:
                        check(True, text in answer.text, text)
                case "timing_ms":
                    check(True, answer.elapsed.total_seconds() * 1_000 < want.get("less_than", 1e9), word)
                case _ if not word.endswith("_comment"):
                    raise Failed(f"unknown assertion {word}")

    def _check_body(self, got: Any, wanted: Mapping[str, Any]) -> None:
        for path, matcher in wanted.items():
            if path == "$or":
                if not any(all(fits(self._filled(m), find(got, p)) for p, m in one.items()) for one in matcher):
                    raise Failed(f"none of {matcher} fits {got}")
            elif path.startswith("$"):
                check(self._filled(matcher), find(got, str(self._filled(path))), path)

    def _expect(self, answer: httpx.Response, got: Any, job: Any, wanted: Mapping[str, Any]) -> None:
        for word, want in wanted.items():
            if word in ("status", "status_in"):
                check_status(want, answer)
            elif word == "body":
                for path, matcher in want.items():
                    check(self._filled(matcher), find(job, path), path)
            elif word.startswith("body."):
                check(self._filled(want), find(got, word.removeprefix("body.")), word)
            else:
                raise Failed(f"unknown expectation {word}")

    def _assert_across(self, wanted: Mapping[str, Any]) -> None:
        if (claim := wanted.get("exclusive_claim")) is not None:
            job = self._filled(claim["job_id"])
            fetched = [[one["id"] for one in self._filled(jobs)] for jobs in claim["fetches"]]
            check(1, sum(job in ids for ids in fetched), "fetches with the job")
            check(1, sum(not ids for ids in fetched), "empty fetches")
        for left, right in wanted.get("equality", {}).items():
            _, _, name, _, _, *rest = left.split(".", 5)
            value = self._bodies[name]
            check(True, (find(value, rest[0]) if rest else value) == self._filled(right), left)

    # Templates: {{steps.ID.response.body.PATH}}, ${name}, {{name}}, $ref.name.

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._filled(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._filled(one) for one in value]
        if not isinstance(value, str):
            return value
        if (whole := _TEMPLATE.fullmatch(value)) is not None:
            return self._value(whole)
        return _TEMPLATE.sub(lambda found: str(self._value(found)), value)

    def _value(self, found: "re.Match[str]") -> Any:
        if (step := found["step"]) is not None:
            value = self._bodies.get(step)
            return value if found["path"] is None else find(value, found["path"])
        name = found["a"] or found["b"] or found["c"]
        if name not in self._kept:
            raise Failed(f"nothing was kept as {name}")
        return self._kept[name]


_TEMPLATE = re.compile(
    r"\{\{steps\.(?P<step>[^.}]+)\.response\.body(?:\.(?P<path>[^}]+))?\}\}"
    r"|\$\{(?P<a>[\w-]+)\}|\{\{(?P<b>[\w-]+)\}\}|\$ref\.(?P<c>[\w-]+)"
)

# Paths: $.jobs[0].id, $.crons[*].name, $.jobs[?(@.id=='…')].state, $.meta["a.b"].

_PART = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]|\[(\*)\]|\[\?\(@\.(\w+)==['\"]([^'\"]*)['\"]\)\]|\[['\"]([^'\"]+)['\"]\]")


def find(value: Any, path: str) -> Any:
    """What is at a path, or None. A key may contain dots."""
    rest = path.removeprefix("$")
    while rest and value is not None:
        dotted = rest.removeprefix(".")
        if isinstance(value, dict):
            known = [key for key in value if "." in key and re.match(re.escape(key) + r"($|\.|\[)", dotted)]
            if known:
                value, rest = value[known[0]], dotted[len(known[0]) :]
                continue
        part = _PART.match(rest)
        if part is None:
            raise Failed(f"can't read the path {path}")
        rest = rest[part.end() :]
        name, place, star, key, wanted, quoted = part.groups()
        if star is not None:
            found = [find(one, rest) for one in value] if isinstance(value, list) else []
            return [one for one in found if one is not None]
        if place is not None:
            value = value[int(place)] if isinstance(value, list) and int(place) < len(value) else None
        elif key is not None:
            value = next((one for one in value if isinstance(one, dict) and one.get(key) == wanted), None)
        else:
            value = value.get(name or quoted) if isinstance(value, dict) else None
    return value


# Matchers.


def check_status(want: Any, answer: httpx.Response) -> None:
    if isinstance(want, str) and want.startswith("one_of:"):
        want = [int(one) for one in want.removeprefix("one_of:").split(",")]
    good = answer.status_code in want if isinstance(want, list) else fits(want, answer.status_code)
    if not good:
        raise Failed(f"status {answer.status_code} instead of {want}: {answer.text[:300]}")


def check(want: Any, got: Any, where: str) -> None:
    if not fits(want, got):
        raise Failed(f"{where} is {got!r:.200} instead of {want!r:.200}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _matches(value: Any, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


_KINDS: dict[str, Callable[[Any], bool]] = {
    "any": lambda got: True,
    "absent": lambda got: got is None,
    "exists": lambda got: got is not None,
    "string:nonempty": lambda got: isinstance(got, str) and got != "",
    "string:non_empty": lambda got: isinstance(got, str) and got != "",
    "string:uuid": lambda got: _matches(got, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "string:uuidv7": lambda got: _matches(got, r"[0-9a-f-]{14}7[0-9a-f]{3}-[89ab][0-9a-f-]{16}"),
    "string:datetime": lambda got: _matches(got, r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)"),
    "number:positive": lambda got: is_number(got) and got > 0,
    "number:non_negative": lambda got: is_number(got) and got >= 0,
    "array:nonempty": lambda got: isinstance(got, list) and bool(got),
    "array:empty": lambda got: got == [],
}
_SHAPES: tuple[tuple[str, Callable[[Any, str], bool]], ...] = (
    (r"array:min(?:_length)?:(\d+)", lambda got, n: isinstance(got, list) and len(got) >= int(n)),
    (r"array:length[:(](\d+)\)?", lambda got, n: isinstance(got, list) and len(got) == int(n)),
    (r"contains:(.*)", lambda got, text: isinstance(got, list) and text in map(str, got)),
    (r"not_contains:(.*)", lambda got, text: isinstance(got, list) and text not in map(str, got)),
    (r"string:contains:(.*)", lambda got, text: isinstance(got, str) and text in got),
    (r"string:pattern\((.*)\)", lambda got, text: isinstance(got, str) and bool(re.search(text, got))),
    (r"number:range\(([^)]*)\)", lambda got, ends: is_number(got) and _between(got, *map(float, ends.split(",")))),
    (r"~([\d.]+)", lambda got, n: is_number(got) and _between(got, 0.5 * float(n), 1.5 * float(n))),
)
_TYPES = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}


def _between(got: float, low: float, high: float) -> bool:
    return low <= got <= high


def fits(want: Any, got: Any) -> bool:
    """Whether a value is what a matcher asks for."""
    if isinstance(want, str):
        if want in _KINDS:
            return _KINDS[want](got)
        for pattern, test in _SHAPES:
            if (found := re.fullmatch(pattern, want, re.DOTALL)) is not None:
                return test(got, found[1])
        return bool(got == want)
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(fits, want, got))
    if isinstance(want, dict):
        if any(key.startswith("$") for key in want) or set(want) == {"range"}:
            return all(_operates(key, one, got) for key, one in want.items())
        return isinstance(got, dict) and all(fits(one, find(got, key)) for key, one in want.items())
    if is_number(want):
        return is_number(got) and abs(want - got) < 1e-9
    return want is got


def _operates(word: str, want: Any, got: Any) -> bool:
    match word:
        case "$exists":
            return (got is not None) is want
        case "$type":
            return is_number(got) if want == "number" else isinstance(got, _TYPES[want])
        case "$match":
            return isinstance(got, str) and bool(re.search(want, got))
        case "$eq":
            return bool(got == want)
        case "$in":
            return got in want
        case "$gte":
            return is_number(got) and got >= want
        case "$size":
            return isinstance(got, list | str | dict) and fits(want, len(got))
        case "$or":
            return any(fits(one, got) for one in want)
        case "range":
            return is_number(got) and want["min"] <= got <= want["max"]
    raise Failed(f"unknown operator {word}")
