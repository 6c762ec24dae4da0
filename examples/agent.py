"""A research agent: it plans, lets child jobs look things up, asks a person, and sends one mail.

    python examples/agent.py                     # runs it, and answers its question itself

In production the worker and the person are elsewhere, and the answer may come two days later:

    holdfast worker examples/agent.py:app
    holdfast ask                                 # lists the open questions, and which job asks them
    holdfast ask ID --answer '{"send": true, "to": "ada@example.org"}'
"""

import asyncio
from pathlib import Path

from pydantic import BaseModel

from holdfast import App, ask, step

app = App()  # $HOLDFAST_URL, else sqlite:///holdfast.db in this folder


class Verdict(BaseModel):
    """The form that a person fills in."""

    send: bool
    to: str
    note: str = ""


class Mail(BaseModel):
    to: str
    subject: str
    text: str


@step(retries=3, timeout="2m")
async def plan(topic: str) -> list[str]:
    """Decide which questions to look into. The model is asked once, so every later run has the same plan."""
    return await model("plan", topic)


@step(retries=3, timeout="2m")
async def search(question: str) -> str:
    return (await model("search", question))[0]


@step(retries=3, timeout="2m")
async def summarise(question: str, found: str) -> str:
    return (await model("summarise", f"{question} {found}"))[0]


@app.job(retries=2)
async def look_up(question: str) -> str:
    """Look up one question. Each is a child job: any worker may run it, and it has its own retries."""
    return await summarise(question, await search(question))


@step(effect="once", key=lambda mail: mail.to)
async def send_mail(mail: Mail) -> str:
    """Send the mail. It is never sent twice: if it is cut off, a person is asked whether it went out."""
    return await mail_service(mail)


@app.job(timeout="1h", stages=[plan, send_mail])
async def research(topic: str) -> str:
    questions = await plan(topic)
    findings: list[str] = await look_up.map(questions)  # this job holds no slot while they run
    report = "\n".join(f"- {finding}" for finding in findings)

    try:
        verdict = await ask({"topic": topic, "report": report}, form=Verdict, within="2d")
    except TimeoutError:
        return "nobody looked at the report within two days; nothing was sent"
    if not verdict.send:
        return f"not sent: {verdict.note}"
    receipt = await send_mail(Mail(to=verdict.to, subject=f"About {topic}", text=report))
    return f"sent to {verdict.to}: {receipt}"


# Pretend providers: no network. Every call that they answer is written to agent.log.


async def model(task: str, prompt: str) -> list[str]:
    await asyncio.sleep(0.2)
    note(f"{task}\t{prompt}")
    if task == "plan":
        return [f"What is {prompt}?", f"Who needs {prompt}?", f"What does {prompt} cost?"]
    return ["Three sources agree on it."] if task == "search" else [prompt]


async def mail_service(mail: Mail) -> str:
    """It takes no idempotency key: a mail that it gets twice, it sends twice."""
    await asyncio.sleep(0.1)
    note(f"mail\t{mail.to}")
    return f"{len(mail.text)} characters"


def note(line: str) -> None:
    with Path("agent.log").open("a") as log:
        log.write(line + "\n")


async def main() -> None:
    run = await research.submit("kelp farming", key="kelp-farming")  # the same key: the same run
    async with app.worker():
        result = asyncio.create_task(run.result())
        while not result.done():
            print(await run.status(), flush=True)
            for question in await app.jobs.questions(run.id):
                print(f"it asks whether to send this, and the demo agrees:\n{question.value['report']}")
                await app.jobs.answer(run.id, {"send": True, "to": "ada@example.org"}, by="demo")
            await asyncio.wait([result], timeout=0.3)
    print(await result)


if __name__ == "__main__":
    asyncio.run(main())
