"""The laws of what a job's own code does to its worker: it exits, forks, or takes longer than its timeout."""

from collections.abc import Iterator

from holdfast.forking import COPY_ENDED
from tests.simulation.check import Run, law
from tests.simulation.rough import TIMELY_SECONDS


@law
def a_step_does_not_outlast_its_timeout(run: Run) -> Iterator[str]:
    for effect in run.effects:
        if effect.path.startswith("timely#") and effect.ended is not None:
            took = effect.ended - effect.began
            if took > TIMELY_SECONDS * (1 + 2 * run.plan.drift) + run.plan.lateness:
                yield f"timeouts: {effect.job[-6:]}: {effect.path} took {took:.1f} s, of {TIMELY_SECONDS}"


@law
def only_what_ends_the_loop_ends_the_worker(run: Run) -> Iterator[str]:
    """`sys.exit` in a step is a failure of that step."""
    for node in run.cast.nodes:
        if node.unlooped is not None and node.process.name not in run.stage.scene.unlooped:
            yield f"exits: the event loop of {node.worker.id} was ended by a step that failed"


@law
def a_forked_child_that_returns_into_its_job_is_ended(run: Run) -> Iterator[str]:
    """It comes no further than to the event loop, and the parent goes on as all other laws say."""
    for code in run.stage.scene.forks:
        if code != COPY_ENDED:
            yield f"forks: a child went on as a second worker, and ended with {code}"
