"""`needs` and `has`: a worker takes only the jobs whose needs it meets, and others can see what is missing."""

import asyncio

import pytest

from holdfast import App, Invalid
from holdfast.cli.worker_process import useless_words
from holdfast.core.model import State
from holdfast.jobs.checkup.check_queues import check_types
from holdfast.jobs.views.overview import view_queues


def an_app() -> App:
    app = App("memory:")

    @app.job(needs={"gpu", "large"})
    async def render(film: str) -> str:
        return film

    @app.job
    async def mail(to: str) -> str:
        return to

    return app


async def test_a_worker_takes_only_what_it_can_serve() -> None:
    app = an_app()
    render, mail = (app.registry.get(type) for type in ("render", "mail"))
    assert [one.needs if one else None for one in (render, mail)] == [frozenset({"gpu", "large"}), frozenset()]
    jobs = await app.open()
    film = await jobs.submit([_request("render")])
    letter = await jobs.submit([_request("mail")])

    async with asyncio.timeout(30), app.worker(has={"gpu"}) as worker:
        assert "render" not in worker.types()
        while (await jobs.get(letter[0].id)).state is not State.COMPLETED:  # noqa: ASYNC110 (bounded above)
            await asyncio.sleep(0.01)
        assert (await jobs.get(film[0].id)).state is State.AVAILABLE
        [queue] = await view_queues(jobs)
        assert dict(queue.lacking) == {"render": ("large",)}
        assert queue.unknown == ()
        assert queue.shape()["lacking"] == {"render": ["large"]}
        [finding] = check_types([queue])
        assert finding.text == (
            "default: no running worker can run the waiting jobs of type render, which need large: "
            "start a worker that has it: holdfast worker MODULE:APP --has large"
        )
        [presence] = await jobs.workers()
        assert presence.has == ("gpu",)

    async with asyncio.timeout(30), app.worker(has=["gpu", "large", "more"]):
        while (await jobs.get(film[0].id)).state is not State.COMPLETED:  # noqa: ASYNC110 (bounded above)
            await asyncio.sleep(0.01)
    await app.close()


@pytest.mark.parametrize("given", ["gpu", {"a b"}, {""}, {5}, 5, {"x" * 61}])
def test_wrong_words_are_refused(given: object) -> None:
    with pytest.raises(Invalid, match="job render: needs="):

        @App("memory:").job(needs=given)  # type: ignore[call-overload]
        async def render() -> None:
            pass


async def test_a_worker_refuses_wrong_words() -> None:
    with pytest.raises(Invalid, match="has='gpu'"):
        async with an_app().worker(has="gpu"):
            pass


def test_a_word_that_no_job_needs_is_pointed_out() -> None:
    assert useless_words(an_app(), ["gpu", "gpus"]) == [
        "warning: --has gpus: no job of this App needs it; did you mean gpu?"
    ]


def _request(type: str):
    from holdfast.jobs.service import JobRequest

    return JobRequest(type=type, args='["x"]')
