"""Questions that jobs ask: listed, answered by a form, and refused where an answer does not fit."""

import asyncio

import pytest
from pydantic import BaseModel, Field, field_validator

from holdfast import ask, wait_for
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.model import State
from tests.support.given import in_state, until

ENGINES = ("memory", "sqlite", "postgres", "redis")


class Decision(BaseModel):
    ok: bool
    why: str = ""


class Stars(BaseModel):
    stars: int = Field(ge=1, le=5)

    @field_validator("stars")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("an even number, please")
        return value


async def test_an_answer_outside_the_forms_bounds_is_refused_at_once(app):
    @app.job
    async def film() -> int:
        return (await ask("how many?", form=Stars)).stars

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        with pytest.raises(BadValue, match="stars: must be less than or equal to 5, but is 9"):
            await app.jobs.answer(run.id, {"stars": 9})
        (question,) = await app.jobs.questions(run.id)
        with pytest.raises(BadValue, match="stars: must be greater than or equal to 1, but is 0"):
            await run.signal(question.name, {"stars": 0})
        await app.jobs.answer(run.id, {"stars": 4})
        assert await run.result(5) == 4


async def test_who_answers_what_only_the_job_can_refuse_sees_it_beside_the_question(app):
    @app.job
    async def film() -> int:
        other = asyncio.create_task(wait_for("other", as_=int))
        answer = await ask("how many?", form=Stars)
        return answer.stars + await other

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await app.jobs.answer(run.id, {"stars": 3}, by="Ada")

        async def told():
            return [one for one in await app.jobs.questions(run.id) if one.refused]

        await until(told)
        await run.signal("other", 1)  # it runs once more, and still tells
        await in_state(app, run, State.PENDING)

        (question,) = await app.jobs.questions(run.id)

        assert question.refused is not None
        assert question.refused.by == "Ada"
        assert "an even number, please" in question.refused.why
        await app.jobs.answer(run.id, {"stars": 4})
        assert await run.result(5) == 5


async def test_a_question_waits_for_a_typed_answer_and_can_be_listed(app):
    @app.job
    async def film() -> str:
        verdict = await ask({"draft": "a film about kelp"}, form=Decision, within="2d")
        return verdict.why

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        (question,) = await app.jobs.questions()
        assert (question.job, question.type) == (run.id, "film")
        assert question.value == {"draft": "a film about kelp"}
        assert set(question.schema["properties"]) == {"ok", "why"}
        with pytest.raises(Invalid, match="ok"):
            await app.jobs.answer(run.id, {"ok": 3})
        await app.jobs.answer(run.id, {"ok": True, "why": "more kelp"})
        assert await run.result(5) == "more kelp"
    assert await app.jobs.questions() == []


async def test_equal_questions_are_told_apart(app):
    @app.job
    async def film() -> list[bool]:
        first, second = await asyncio.gather(ask("ok?", form=Decision), ask("ok?", form=Decision))
        return [first.ok, second.ok]

    run = await film.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        with pytest.raises(Invalid, match="has 2 open questions"):
            await app.jobs.answer(run.id, {"ok": True})
        for question in await app.jobs.questions():
            await in_state(app, run, State.PENDING)
            await app.jobs.answer(run.id, {"ok": question.name.endswith(".2")}, name=question.name)
        assert await run.result(5) == [False, True]
