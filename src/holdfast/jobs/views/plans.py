"""Plans of replays as JSON. Must not make one (`jobs.replay_plans`)."""

from holdfast.core.spending import plain
from holdfast.jobs.replay_plans import Plan, PlanOfMany
from holdfast.jobs.views.shapes import Shape


def plan_shape(plan: Plan) -> Shape:
    """The plan of one replay."""
    return {
        "id": plan.job,
        "type": plan.type,
        "will_run": list(plan.will_run),
        "recorded": list(plan.recorded),
        "may_run": list(plan.may_run),
        "names": dict(plan.names),
        "in_doubt": list(plan.in_doubt),
        "children": list(plan.children),
        "effects": list(plan.effects),
        "first_effects": list(plan.first_effects),
        "expected": dict(plan.expected),
        "about_ms": plan.ms,
        "about": plain(plan.spent),
        "runs": plan.runs,
    }


def plan_of_many_shape(plan: PlanOfMany) -> Shape:
    """The plan of a replay of many jobs."""
    return {
        "total": plan.total,
        "types": dict(plan.types),
        "will_run": plan.will_run,
        "recorded": plan.recorded,
        "in_doubt": plan.in_doubt,
        "effects": plan.effects,
        "first_effects": list(plan.first_effects),
        "about_ms": plan.ms,
        "about": plain(plan.spent),
        "runs": plan.runs,
    }
