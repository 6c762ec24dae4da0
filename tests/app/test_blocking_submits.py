"""Submits in blocking code: they wait in their own thread where the engine lets them, and else on the portal's."""

import threading
from pathlib import Path

import pytest

from holdfast import App, KeyConflict
from holdfast.app.sync import Portal
from holdfast.core.errors import BadValue

SECONDS = 20.0


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of an empty store whose engine may block a thread."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue(f"{request.param}_store"))


@pytest.fixture
def no_portal(monkeypatch: pytest.MonkeyPatch):
    """From the call on, nothing may go by way of the portal."""

    def refuse(self: object, work: object) -> None:
        work.close()  # type: ignore[attr-defined]
        raise AssertionError("the portal was asked")

    return lambda: monkeypatch.setattr(Portal, "call", refuse)


def film_on(app: App):
    @app.job
    async def film(n: int) -> int:
        return n

    return film


def test_once_the_store_is_open_no_other_loop_has_to_wake_up(store, no_portal):
    app = App(store)
    film = film_on(app)
    first = app.sync.submit(film, 1)
    no_portal()

    second = app.sync.submit(film, 2, key="order-2", tags=["a"])

    assert first.id < second.id
    assert app.sync.submit(film, 2, key="order-2").id == second.id


def test_what_is_refused_is_raised_in_the_callers_thread(store, no_portal):
    app = App(store)
    film = film_on(app)
    app.sync.submit(film, 1, key="order-1")
    no_portal()

    with pytest.raises(KeyConflict):
        app.sync.submit(film, 2, key="order-1")
    with pytest.raises(BadValue):
        app.sync.submit(film, "no number")


def test_many_threads_submit_at_once_and_each_has_its_own_answer(store):
    app = App(store)
    film = film_on(app)
    start, ids = threading.Barrier(4), list[str]()

    def submit(part: int) -> None:
        start.wait(SECONDS)
        for n in range(25):
            ids.append(app.sync.submit(film, 100 * part + n).id)

    threads = [threading.Thread(target=submit, args=(part,), daemon=True) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)

    assert len(set(ids)) == 100
    assert {app.sync.run(id).status().state.value for id in ids} == {"available"}


def test_a_store_that_was_closed_is_opened_anew(store):
    app = App(store)
    film = film_on(app)
    app.sync.submit(film, 1)
    app.sync.call(app.close())

    run = app.sync.submit(film, 2)

    assert run.status().state.value == "available"


def test_an_engine_that_needs_a_loop_is_asked_on_the_portals():
    app = App("memory:")
    film = film_on(app)

    runs = [app.sync.submit(film, n) for n in range(3)]

    assert not app.engine.may_block
    assert len({run.id for run in runs}) == 3
