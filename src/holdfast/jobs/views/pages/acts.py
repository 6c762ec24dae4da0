"""What a person can do, each with its call of the API and the equal command. Must not do anything."""

import shlex

from holdfast.core.lifecycle import EVENT_ROWS, SETTLED
from holdfast.core.model import Event, Job, State
from holdfast.jobs.views.pages.parts import Act
from holdfast.jobs.views.text import plural, short_id
from holdfast.safe_text import clean

API = "/api/v1"


def job_acts(job: Job, to_undo: int = 0) -> tuple[Act, ...]:
    """Return what can be done about a job in its state."""
    found: list[Act] = []
    if job.state is State.REVIEW:
        found += review_acts(job.id)
    if job.state in EVENT_ROWS[Event.CANCEL].sources:
        found.append(cancel_act(job.id, to_undo))
    return tuple(found)


def cancel_act(id: str, to_undo: int) -> Act:
    """Return the act that cancels a job. It can't be taken back."""
    undone = f": {plural(to_undo, 'thing')} will be undone" if to_undo else ""
    return _act(id, "cancel", "Cancel", f"cancel {short_id(id)}", twice=f"Cancel it{undone}")


def stop_act(id: str) -> Act:
    """Return the act that stops an act on many jobs."""
    path, command = f"{API}/bulk/{id}/stop", f"holdfast cancel {short_id(id)}"
    return Act(name="stop", words="Stop", method="POST", path=path, command=command)


def review_acts(id: str) -> tuple[Act, ...]:
    """Return what can be done about a job in review."""
    short = short_id(id)
    return (
        _act(id, "replay", "Replay", f"replay {short}"),
        _act(id, "resolve", "Supply the result", f"resolve {short} --result JSON"),
        _act(id, "discard", "Give up", f"discard {short}", twice="Give it up"),
    )


def answer_act(id: str, name: str) -> Act:
    """Return the act that answers a question."""
    return _act(id, "answer", "Answer", f"ask {short_id(id)} --answer JSON --name {shlex.quote(clean(name))}")


def doubt_acts(id: str, path: str) -> tuple[Act, Act]:
    """Return the two decisions about a step in doubt: it happened, or do it again."""
    command = f"resolve {short_id(id)} --step {shlex.quote(clean(path))}"
    return (
        _act(id, "resolve-step", "It happened", f"{command} --result JSON"),
        _act(id, "resolve-step", "It did not", f"{command} --again"),
    )


def step_acts(job: Job, path: str) -> tuple[Act, ...]:
    """Return what can be done with a recorded step: run it again, or make a run that begins before it."""
    short, named = short_id(job.id), shlex.quote(clean(path))
    again = _act(job.id, "rerun", "Run it again", f"rerun {short} {named}")
    fork = _act(job.id, "fork", "Fork before it", f"fork {short} --until {named}")
    return (again, fork) if job.state in SETTLED else (fork,)


def budget_act(id: str) -> Act:
    """Return the act that adds to a budget."""
    return _act(id, "budget", "Add to its budget", f"budget {short_id(id)} --add usd=5")


def place_act(kind: str, name: str, act: str, words: str, command: str, twice: str = "") -> Act:
    """Return an act on a queue, a worker, a schedule or a limit."""
    path = f"{API}/{kind}/{name}/{act}"
    return Act(name=act, words=words, method="POST", path=path, command=f"holdfast {command}", twice=twice)


def _act(id: str, name: str, words: str, command: str, twice: str = "") -> Act:
    path = f"{API}/jobs/{id}/{name}"
    return Act(name=name, words=words, method="POST", path=path, command=f"holdfast {command}", twice=twice)
