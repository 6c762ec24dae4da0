"""The docs pages that are made from code: `python -m tools.docs_pages [--check]`.

Must not hold facts that the code has: a page takes them from where they are true, and only the prose is written here.
To add a page, add a line to PAGES.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import click

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

FAILURES = (Event.FAIL, Event.EXHAUST, Event.OVERRUN)
"""The events that count as a failure of the job. A test holds it against `decide`."""

URLS = ("memory:", "file:x.json", "sqlite:///x.db", "postgresql://host/db", "redis://host/0")
"""One store of each kind, in the order in which an app outgrows them."""

ROOT = Path(__file__).resolve().parents[1]
"""The checkout that this file lies in."""


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a page is not what the code makes of it.")
def main(check: bool) -> None:
    """Write anew the docs pages that are made from code."""
    if not (ROOT / "docs").is_dir():
        raise click.ClickException(f"{ROOT} has no docs folder: run this in a checkout of the project")
    stale = stale_pages(ROOT)
    for path in stale:
        if check:
            click.echo(f"{path} is stale: write it anew with `make docs`", err=True)
        else:
            write_page(ROOT, path)
            click.echo(f"wrote {path}")
    if check and stale:
        raise SystemExit(1)


def stale_pages(root: Path) -> list[str]:
    """The pages under `root` that are missing or not what the code makes of them."""
    return [path for path, make in PAGES.items() if _text_at(root / path) != make()]


def write_page(root: Path, path: str) -> None:
    """Write one page under `root`."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PAGES[path](), encoding="utf-8")


def _text_at(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


def lifecycle_page() -> str:
    """The page about a job's life."""
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
    """The page about what engines promise."""
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
    """The guide to which store to take."""
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
    """The page about how far callers can make things grow."""
    return LIMITS_PAGE.format(limits=_table(("what", "at most", "beyond that"), LIMITS))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


LIFECYCLE = """\
<!-- Made from src/holdfast/core/lifecycle.py by `make docs`. Don't edit: change the code, or the prose in
tools/docs_pages.py. -->

# The life of a job

At any moment a job is in one of {state_count} states, and only the {event_count} events below move it to another.
Both tables are data that the code itself runs on: what has no row here can't happen. `holdfast lifecycle` prints them
in your terminal, and with `--format mermaid`, `svg` or `json` for other uses.

Most jobs live a short life: they are submitted and are *available*, a worker claims one and it is *active*, and it is
*completed*. A job that fails is *retryable* until its backoff is over. One that sleeps is *scheduled*, one that waits
for an answer, a child or a budget is *pending*. When nothing sensible can be done without a person, the job stops in
*review* and keeps all that it recorded.

![The states of a job, and the events that lead from one to another](lifecycle.svg)

## States

{states}

The last three columns are the names that a state goes by elsewhere. {terminal} are terminal:
nothing leads out of them.

## Events

{events}

Each change of state is one atomic act together with its entry in the job's history.

## What the lease rules mean

A worker that claims a job gets a lease: the right to write for that job, for as long as the worker shows that it lives.

{rules}

So a job that is owned changes in two ways only: its owner says so under the current epoch, or an event that breaks the
lease takes the job away. A worker that was away for too long finds its epoch outdated, and what it writes is refused
whole.

## What is counted

- **`attempt`** is the number of failures, plus one. Only {failures} count: sleeping, waiting, a deploy
  or a lost worker spends no try.
- **`epoch`** is the number of times the job was claimed. It never goes back, not even for a replay, and so it tells
  the current owner from every earlier one.
- **`recoveries`** is the number of workers lost in a row. A newly recorded step breaks the row, because then the job
  does get on. After the first loss the job is available at once, after the second it waits {recovery_seconds} seconds,
  and after each further one twice as long. After more than {recovery_limit} in a row it needs a person: it may be the
  job that kills them.

A replay starts `attempt` and `recoveries` anew, and keeps what was recorded.

## Settled

A job is *settled* when nothing more happens to it by itself: its state is {settled}.
Whoever waits for a job waits until it is settled, and review counts as failed. A replay later on doesn't wake them a
second time.
"""

ENGINES = """\
<!-- Made from the engines' own guarantees by `make docs`. Don't edit: change the code, or the prose in
tools/docs_pages.py. -->

# What each engine guarantees

All engines keep the same contract (`holdfast.engines.contract`) and pass the same suite:

```
pytest --pyargs holdfast.conformance --engine sqlite:///test.db
```

On every one of them a job has one owner at a time, a write under an old epoch is refused whole, a change and its
history entry are one act, and a recorded step stands. This table tells where they differ; which one to take is in
[choosing a store](../guides/choosing-a-store.md).

{table}

*Durable* is what acknowledged work survives. *Atomic children*: whether a change and the jobs that it brings along are
one act. *Transactional*: which steps may write to the store's own database in the transaction of their record, with
[`effect="transaction"`](../guides/effects.md). *Clock*: whose time decides what is due and whose lease is over.
"""

CHOOSING = """\
<!-- Made from the engines' own guarantees by `make docs`. Don't edit: change the code, or the prose in
tools/docs_pages.py. -->

# Choosing a store

Start with SQLite: it needs no server. Change when you reach one of its limits. Your code is the same on every store,
because a store is just a URL: in `App(url)`, `--url` or `$HOLDFAST_URL`.

{table}

- *Survives*: what acknowledged work survives.
- *Transactional*: which steps can write to your own tables in the transaction of their record ([Effects](effects.md)).
- *`holdfast move`*: whether you can move jobs from and to this store. If not, let them end there.

[What each engine guarantees](../reference/engines.md) has the rest.

## Find the right store

| you have | use |
| --- | --- |
| tests | `memory:`, through [`in_memory`](testing.md) |
| one script and a list, and you want to read and edit the results | `file:`, see [Lists](lists.md) |
| one machine, with as many processes as you like | `sqlite:` on a local disk, not on a network share |
| several machines, or one machine that must not be the only one | `postgresql:`, see [Postgres](postgres.md) |
| your own data in Postgres that changes together with a job | `postgresql:`, in the same database |
| many short jobs, a Redis server, and no harm in losing a second | `redis:`, see [Redis](redis.md) |

If a power cut loses the last second, a step that finished in it runs again, and a job that was submitted in it is gone.
So if steps cost money or jobs must not be lost, use a store that survives a power cut.

**SQLite or Postgres?** Use SQLite as long as one machine does the work: a backup is one file, and nobody has to run a
server. Use Postgres as soon as a second machine runs workers.

## Change the store later

Changing the store takes one command, and your jobs pause while it runs:

```
holdfast move --from sqlite:///jobs.db --to postgresql://user@host/database
```

- Workers stop during the move, and a submit to the old store gets an error that names the new one. 20,000 jobs took 8
  to 24 seconds ([details](moving.md#how-long-it-takes)).
- Jobs keep their ids, history, recorded steps, waits, signals and keys, and continue with their next item.
- Your own tables stay where they are. Transactional steps use the SQL of that database through `tx()`, so you have to
  move those tables, and perhaps rewrite the SQL.
- Times don't change. From then on, the clock of the new store counts.

[Moving to another store](moving.md) says in which order to do this, and how to go back.
"""

LIMITS_PAGE = """\
<!-- Made from src/holdfast/core/limits.py by `make docs`. Don't edit: change the code, or the prose in
tools/docs_pages.py. -->

# Limits

Whatever a caller can make grow has a bound, the same on every store, in Python and on the command line. What is too
large is refused with one line before anything is written. Texts that only people read are cut instead. KiB and MiB are
measured in bytes of UTF-8.

{limits}

An inbox counts the signals that the job has not taken by `wait_for`. However many senders race, it never holds more: a
sender that was overtaken looks again before it writes. A flood of other signals can't keep a job from the one that it
waits for: the first of that name is accepted for each wait, whether or not the job has given up its slot. A wait in a
kept slot counts once it is recorded: at once under a timer of asyncio that has more than a second left, and otherwise
after a second.

These have no bound of their own:

- the children of a job and the items of a `map`: each is a row of its own, and they are read page by page;
- the recorded steps of a job: each is a row of its own. A job that goes on reads all of them, so that for more than
  about 100,000 items it is better to submit several jobs;
- the history of a job, and the records of its waits: a job that loops over `wait_for` writes an entry and a record for
  each signal, and reads all of its records when it goes on. After some 10,000, let it end and submit the next one;
- the jobs of a store, except in a `file:` store: [engines](engines.md).
"""

PAGES: dict[str, Callable[[], str]] = {
    "docs/lifecycle.md": lifecycle_page,
    "docs/lifecycle.svg": as_svg,
    "docs/reference/engines.md": engines_page,
    "docs/reference/limits.md": limits_page,
    "docs/guides/choosing-a-store.md": choosing_page,
}
"""Each made page by its path in the checkout, and what makes it."""


if __name__ == "__main__":
    main()
