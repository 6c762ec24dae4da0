"""The docs pages that are generated from code: `python -m tools.docs_pages [--check]`.

Must not repeat facts that the code holds: a page reads them from the code, and only the prose is written here. To add
a page, add a line to PAGES.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.render.lifecycle_svg import as_svg
from holdfast.cli.render.lifecycle_text import LEASE_WORDS, owner_of, sources_in_words
from holdfast.core.lifecycle import (
    EVENTS,
    RECOVERY_BACKOFF_MS,
    RECOVERY_LIMIT,
    SETTLED,
    STATES,
    TERMINAL,
    EventRow,
)
from holdfast.core.limits import LIMITS
from holdfast.core.model import Event
from holdfast.engines import engine_class
from holdfast.engines.traits import Movable
from holdfast.server.api.operations import document as openapi

FAILURES = (Event.FAIL, Event.EXHAUST, Event.OVERRUN)
"""The events that count as a failure of the job. A test checks this against `decide`."""

URLS = ("memory:", "file:x.json", "sqlite:///x.db", "postgresql://host/db", "redis://host/0")
"""One store of each kind, in the order in which an app outgrows them."""

ROOT = Path(__file__).resolve().parents[1]
"""The checkout that contains this file."""


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a page is out of date.")
def main(check: bool) -> None:
    """Write the docs pages that are generated from code."""
    if not (ROOT / "docs").is_dir():
        raise click.ClickException(f"{ROOT} has no docs folder; run this in a checkout of the project")
    stale = stale_pages(ROOT)
    for path in stale:
        if check:
            click.echo(f"{path} is out of date; run `make docs`", err=True)
        else:
            write_page(ROOT, path)
            click.echo(f"wrote {path}")
    if check and stale:
        raise SystemExit(1)


def stale_pages(root: Path) -> list[str]:
    """The pages under `root` that are missing or out of date."""
    return [path for path, make in PAGES.items() if _text_at(root / path) != make()]


def write_page(root: Path, path: str) -> None:
    """Write one page under `root`."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PAGES[path](), encoding="utf-8")


def _text_at(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


def lifecycle_page() -> str:
    """The page about the lifecycle of a job."""
    return LIFECYCLE.format(
        state_count=len(STATES),
        event_count=len(EVENTS),
        states=_states(),
        events=_events(),
        rules=_table(("lease", "what it means"), ((str(rule), words) for rule, words in LEASE_WORDS.items())),
        terminal=_code("and", (row.state for row in STATES if row.state in TERMINAL)),
        settled=_code("or", (row.state for row in STATES if row.state in SETTLED)),
        failures=_code("and", FAILURES),
        recovery_limit=RECOVERY_LIMIT,
        recovery_seconds=f"{RECOVERY_BACKOFF_MS / 1000:g}",
    )


def engines_page() -> str:
    """The page about what each engine guarantees."""
    promised = [engine_class(url).guarantees for url in URLS]
    rows = (
        (
            f"**{one.name}**<br>`{one.url}`",
            one.use,
            one.durable,
            one.processes,
            one.wakes,
            "yes" if one.atomic_children else "no",
            one.transactions,
            one.clock,
            one.limit,
        )
        for one in promised
    )
    head = (
        "engine",
        "for",
        "durable",
        "used by",
        "wake-ups reach",
        "atomic children",
        "transactional",
        "clock",
        "limit",
    )
    return ENGINES.format(table=_table(head, rows))


def choosing_page() -> str:
    """The guide to choosing a store."""
    engines = [engine_class(url) for url in URLS]
    rows = (
        (
            f"`{engine.guarantees.url}`",
            engine.guarantees.use,
            engine.guarantees.durable,
            engine.guarantees.processes,
            engine.guarantees.transactions,
            "yes" if issubclass(engine, Movable) else "no",
            engine.guarantees.limit,
        )
        for engine in engines
    )
    head = ("store", "for", "survives", "used by", "transactional", "`holdfast move`", "limit")
    return CHOOSING.format(table=_table(head, rows))


def _states() -> str:
    rows = (
        (
            f"`{row.state}`" + (" (terminal)" if row.terminal else ""),
            row.meaning,
            owner_of(row),
            row.ojs,
            row.celery,
            row.checkpoint,
        )
        for row in STATES
    )
    return _table(("state", "meaning", "owner", "Open Job Spec", "Celery", "checkpoint file"), rows)


def _events() -> str:
    rows = (
        (f"`{row.event}`", _from(row), ", ".join(row.targets), str(row.lease), row.who, row.meaning) for row in EVENTS
    )
    return _table(("event", "from", "to", "lease", "who", "meaning"), rows)


def _from(row: EventRow) -> str:
    return sources_in_words(row) if row.sources else "– (a new job)"


def _code(joint: str, names: Iterable[str]) -> str:
    """Names as an enumeration in code style: `a`, `b` and `c`."""
    *most, last = [f"`{name}`" for name in names]
    return f"{', '.join(most)} {joint} {last}"


def limits_page() -> str:
    """The page about limits."""
    return LIMITS_PAGE.format(limits=_table(("what", "at most", "beyond that"), LIMITS))


def api_page() -> str:
    """The calls of the HTTP API, from its OpenAPI document."""
    document = msgspec.json.decode(openapi())
    parts = [
        "# API reference",
        "",
        "Made from the OpenAPI document, which a server has at `/api/v1/openapi.json`. How to use the API is in",
        "[The HTTP API](../guides/http-api.md).",
        "",
        "## Calls",
        "",
        _table(("call", "does", "scope", "takes", "answers"), _calls(document)),
        "",
        "## Types",
    ]
    for name, schema in sorted(document["components"]["schemas"].items()):
        if "properties" in schema:
            about = " ".join(schema.get("description", "").split())
            parts += ["", f"### {name}", "", about, "", _table(("field", "type"), _fields(schema))]
    return "\n".join(parts) + "\n"


def _calls(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            query = [f"`{parameter['name']}`" for parameter in one["parameters"] if parameter["in"] == "query"]
            body = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            takes = _type(body) if body else ", ".join(query)
            [answer] = next(iter(one["responses"].values()))["content"].values()
            yield f"`{method.upper()} {path}`", one["summary"], one["x-scope"], takes, _type(answer["schema"])


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, one in schema["properties"].items():
        yield f"`{name}`", _type(one)


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words, with a link to the type that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format", schema.get("type", "any")))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


LIFECYCLE = """\
<!-- Made from src/holdfast/core/lifecycle.py by `make docs`. Don't edit: change the code, or the prose in
tools/docs_pages.py. -->

# The life of a job

A job is always in one of {state_count} states. Only the {event_count} events below move it to another state. The code
runs on these two tables: if a change has no row here, it can't happen. `holdfast lifecycle` prints both tables in your
terminal. For other tools, use `--format mermaid`, `svg` or `json`.

Most jobs pass through three states: a new job is *available*, a worker claims it and it is *active*, and then it is
*completed*. A job that fails is *retryable* until its backoff is over. A job that sleeps is *scheduled*. A job that
waits for an answer, a signal or a child job is *pending*. When only a person can decide what to do, the job stops in
*review* and keeps everything it recorded.

![The states of a job, and the events that lead from one to another](lifecycle.svg)

## States

{states}

The last three columns are the names of the state in other systems. {terminal} are terminal:
a job never leaves them.

## Events

{events}

A change of state and its entry in the job's history are stored together, or not at all.

## What the lease rules mean

A worker that claims a job gets a lease: the right to write for that job, as long as the worker's heartbeats arrive.

{rules}

So only two things change an active job: its owner, with the current epoch, or an event that breaks the lease. If a
worker was away for too long, its epoch is outdated, and the store refuses its write as a whole.

## What is counted

- **`attempt`** is the number of failures, plus one. Only {failures} count. Sleeping, waiting, a deploy
  or a lost worker uses no attempt.
- **`epoch`** is the number of times the job was claimed. It never decreases, not even after a replay, so it
  distinguishes the current owner from every earlier one.
- **`recoveries`** is the number of workers lost in a row. A newly recorded step resets the count, because it shows
  progress. After the first loss the job is available at once. After the second it waits {recovery_seconds} seconds, and
  after each further loss twice as long. After more than {recovery_limit} losses in a row the job needs a person,
  because the job itself may be killing its workers.

A replay resets `attempt` and `recoveries`, and keeps the recorded steps.

## Settled

A job is *settled* when nothing more happens to it by itself: its state is {settled}.
`run.result()` waits until the job is settled. For the caller, review counts as a failure. If a person replays the job
later, the caller isn't told again.
"""

ENGINES = """\
<!-- Made from the engines' own guarantees by `make docs`. Don't edit: change the code, or the prose in
tools/docs_pages.py. -->

# What each engine guarantees

All engines follow the same contract (`holdfast.engines.contract`) and pass the same test suite:

```
pytest --pyargs holdfast.conformance --engine sqlite:///test.db
```

Every engine guarantees that:

- a job has one owner at a time;
- the store refuses a write with an old epoch as a whole;
- a change and its history entry are stored together, or not at all;
- the record of a finished step is never overwritten.

The table shows where they differ. [Choosing a store](../guides/choosing-a-store.md) says which one to use.

{table}

- *Durable*: what the store survives without losing acknowledged work.
- *Atomic children*: whether a change and the new jobs in it are stored together, or not at all.
- *Transactional*: which steps can write to the store's own database in the transaction of their record, with
  [`effect="transaction"`](../guides/effects.md).
- *Clock*: whose clock decides when a job is due and when a lease ends.
"""

CHOOSING = """\
<!-- Made from the engines' own guarantees by `make docs`. Don't edit: change the code, or the prose in
tools/docs_pages.py. -->

# Choosing a store

Start with SQLite: it needs no server. Change when you reach one of its limits. Your code is the same on every store,
because a store is just a URL: in `App(url)`, `--url` or `$HOLDFAST_URL`.

{table}

- *Survives*: what the store survives without losing acknowledged work.
- *Transactional*: which steps can write to your own tables in the transaction of their record ([Effects](effects.md)).
- *`holdfast move`*: whether you can move jobs from and to this store. If not, let them end there.

[What each engine guarantees](../reference/engines.md) has the rest.

## Find the right store

| you have | use |
| --- | --- |
| tests | `memory:`, through [`in_memory`](testing.md) |
| one script and a list, and you want to read and edit the results | `file:`, see [Lists](lists.md) |
| one machine, with as many processes as you like | `sqlite:` on a local disk, not on a network share |
| several users on one machine | `sqlite:`, [shared by a group](operating.md#share-a-sqlite-store-between-users) |
| several machines, or one machine that must not be the only one | `postgresql:`, see [Postgres](postgres.md) |
| your own data in Postgres that changes together with a job | `postgresql:`, in the same database |
| many short jobs, a Redis server, and no harm if a power cut loses a second | `redis:`, see [Redis](redis.md) |

What does losing a second mean? A step that finished in that second runs again, and a job that was submitted in it is
gone. If steps cost money or jobs must not be lost, use a store that survives a power cut.

Values over 64 KiB and files go to a blob store by themselves: see [Large values and files](large-values.md).

**SQLite or Postgres?** Use SQLite as long as one machine does the work: a backup is one file, and nobody has to run a
server. Use Postgres as soon as a second machine runs workers.

## Change the store later

Changing the store takes one command, and your jobs pause while it runs:

```
holdfast move --from sqlite:///jobs.db --to postgresql://user@host/database
```

- Workers pause during the move, and a submit to the old store gets an error that names the new one. 20,000 jobs took 8
  to 24 seconds ([details](moving.md#how-long-it-takes)).
- Jobs keep their ids, history, recorded steps, waits, signals and keys, and continue with their next item.
- Your own tables stay where they are. If transactional steps write to them, move these tables too, and perhaps rewrite
  the SQL.
- Times don't change. From then on, the clock of the new store counts.

[Moving to another store](moving.md) says in which order to do this, and how to go back.
"""

LIMITS_PAGE = """\
<!-- Made from src/holdfast/core/limits.py by `make docs`. Don't edit: change the code, or the prose in
tools/docs_pages.py. -->

# Limits

These limits are the same on every store, in Python and on the command line. Holdfast refuses a value that is too large
with a one-line error, before it writes anything. It cuts texts that only people read. KiB and MiB count bytes of UTF-8.

Save images, audio and films in files, and return a `Blob`: see [Large values and files](../guides/large-values.md).

{limits}

The inbox counts the signals that the job has not yet taken with `wait_for`. It never holds more than its limit, even
if many callers send at the same time. A full inbox still accepts the first signal for each wait of the job, so that the
job can continue. If the job [keeps its slot](../guides/waiting.md#use-asyncio-timers-around-a-wait) while it waits,
this applies from the moment when the wait is recorded, after a second at most.

These have no limit of their own:

- **Children of a job and items of a `map`.** Each is a separate row, and Holdfast reads them page by page.
- **Recorded steps of a job.** Each is a separate row. A job that continues after a wait or a crash reads all of them.
  If you have more than about 100,000 items, split them over several jobs.
- **History of a job and records of its waits.** A job that loops over `wait_for` writes an entry and a record for each
  signal, and reads all its records when it continues. After about 10,000, let the job end and submit a new one.
- **Jobs in a store.** Only a `file:` store has a limit; see [engines](engines.md).
"""

PAGES: dict[str, Callable[[], str]] = {
    "docs/lifecycle.md": lifecycle_page,
    "docs/lifecycle.svg": as_svg,
    "docs/reference/engines.md": engines_page,
    "docs/reference/limits.md": limits_page,
    "docs/reference/api.md": api_page,
    "docs/guides/choosing-a-store.md": choosing_page,
}
"""Each generated page by its path in the checkout, with the function that makes it."""


if __name__ == "__main__":
    main()
