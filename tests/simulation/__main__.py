"""Replay a seed: `python -m tests.simulation 1234`, from the root of the repository.

With `--story` all that happened is told line by line, with `--shrink` it is made as small as it can be while it still
breaks the same law, and `--hash` prints nothing but a hash of what happened. `--soak 60` runs seeds for an hour, from a
random one on or from the one that is named; `--soak 0` for ever.
"""

import argparse
import sys
from dataclasses import replace

import tests.simulation.bugs
import tests.simulation.bugs_limits
import tests.simulation.bugs_order  # noqa: F401
from tests.simulation.plan import Plan, draw_plan, drowsy, hasty, limited, orderly, shared, smaller, unruly
from tests.simulation.planting import BUGS, planted
from tests.simulation.run import Verdict, command, play
from tests.simulation.shapes import SHAPES
from tests.simulation.soak import soak

ALTERED = {one.__name__: one for one in (drowsy, hasty, limited, orderly, shared, unruly)}


def main() -> int:
    """Run what was asked for; 1 when a law was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="*", help="which seeds to run")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="run seeds for so long; 0: for ever")
    parser.add_argument("--engine", choices=("memory", "sqlite"), default="memory")
    parser.add_argument("--plan", choices=tuple(ALTERED), help="make this of each seed's plan")
    parser.add_argument("--bug", choices=tuple(BUGS), help="with this planted bug")
    parser.add_argument("--story", action="store_true", help="tell all that happened")
    parser.add_argument("--shrink", action="store_true", help="make a failing seed smaller")
    parser.add_argument("--hash", action="store_true", help="print only a hash of what happened")
    asked = parser.parse_args()
    if asked.soak is not None:
        return soak(asked.soak, asked.seeds[0] if asked.seeds else None, bug=asked.bug)
    if not asked.seeds:
        parser.error("name a seed, or --soak MINUTES")
    failed = False
    with planted(asked.bug):
        for seed in asked.seeds:
            plan = draw_plan(seed, asked.engine, SHAPES)
            plan = plan if asked.plan is None else ALTERED[asked.plan](plan)
            verdict = play(seed, asked.engine, plan=plan, story=asked.story)
            if asked.hash:
                print(verdict.digest)
                continue
            if verdict.broken and asked.shrink:
                verdict = play(seed, asked.engine, plan=shrunk(plan, verdict), story=asked.story)
                tell_plan(verdict.plan)
            tell(verdict, asked.bug)
            failed = failed or bool(verdict.broken)
    return int(failed)


def shrunk(plan: Plan, verdict: Verdict) -> Plan:
    """The smallest plan that breaks the same law: pieces are left out one by one, for as long as it still does."""
    law = verdict.broken[0].partition(":")[0].split(" ")[-1]
    while True:
        for less in smaller(plan):
            broken = play(plan.seed, plan.engine, plan=less).broken
            if any(law in line for line in broken):
                plan = less
                break
        else:
            return replace(plan)


def tell(verdict: Verdict, bug: str | None) -> None:
    """What a run came to."""
    for line in verdict.lines:
        print(line)
    plan = verdict.plan
    print(f"seed {plan.seed} on {plan.engine}: {verdict.simulated:.1f} s, {verdict.acts} acts, hash {verdict.digest}")
    for line in verdict.broken:
        print(f"  {line}")
    print(f"  {command(plan.seed, plan.engine, bug)}" if verdict.broken else "  every law holds")


def tell_plan(plan: Plan) -> None:
    """What is left of a plan."""
    print(plan.tuning, plan.odds, *plan.hands, *plan.errands, *plan.asks, *plan.blows, sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
