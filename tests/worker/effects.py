"""What the tests of effects over deploys share."""

from holdfast.core.model import State
from tests.support.given import in_state


def deploy(app, handler):
    """Let another version of the code run this app's job from now on."""
    app.registry._jobs.clear()
    return app.job(name="order", retries=0)(handler)


async def waiting(app, handler):
    """A run of this handler that waits."""
    run = await deploy(app, handler).submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
    return run
