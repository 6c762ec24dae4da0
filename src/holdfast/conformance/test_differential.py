"""The backbone: a random life of jobs on the memory engine and on this one looks the same on both."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from holdfast.conformance.acts import Act, acts
from holdfast.conformance.kinds import Kind
from holdfast.conformance.twins import Twins

ACTS = 40
"""How many acts one life has."""


def test_any_life_looks_as_it_does_in_memory(kind: Kind, tmp_path: Path, runner: asyncio.Runner, examples: int) -> None:
    class Life(RuleBasedStateMachine):
        """One empty store, and what happens to it."""

        def __init__(self) -> None:
            super().__init__()
            self.url = kind.scratch(Path(tempfile.mkdtemp(dir=tmp_path)))
            self.twins = Twins(kind, self.url)
            self.sound = True
            runner.run(self.twins.open())

        @rule(act=acts)
        def do(self, act: Act) -> None:
            """Do one act on both stores."""
            self.sound = False
            runner.run(self.twins.do(act))
            self.sound = True

        def teardown(self) -> None:
            """Compare a last time, unless a comparison has failed already."""
            try:
                if self.sound:
                    runner.run(self.twins.compare())
            finally:
                runner.run(self.twins.close())
                runner.run(kind.engine.scrap(self.url))

    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=examples,
            stateful_step_count=ACTS,
            derandomize=False,
            deadline=None,
            print_blob=True,
            # Without the explain phase: it runs a failing life hundreds of times more, each on a new store.
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
