"""Checks the options of `@step`, `@app.job`, `map` and `app.worker`.

Must not make a step or a job.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.core.canonical import clipped
from holdfast.core.codec import Signature
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import Invalid, UnknownOption
from holdfast.core.keys import check_queue
from holdfast.core.model import Retry
from holdfast.core.outcome import TRANSACTION, check_retry
from holdfast.core.suggestions import suggest
from holdfast.redaction import LEAST_CHARACTERS
from holdfast.worker.isolation.import_target import check_importable
from holdfast.worker.registry import NO_GENERATOR, StepSpec, is_generator, place_of

F = TypeVar("F", bound=Callable[..., Any])

STEP_OPTIONS = (
    "name",
    "key",
    "retries",
    "timeout",
    "stale_after",
    "effect",
    "undo",
    "isolate",
    "memory_mb",
    "was",
    "limit",
    "cost",
)
"""The options of `@step`."""

JOB_OPTIONS = (
    "name",
    "queue",
    "retries",
    "timeout",
    "stages",
    "keep",
    "keep_result",
    "cleanup",
    "isolate",
    "memory_mb",
    "limit",
    "most_children",
    "fair",
    "needs",
    "budget",
)
"""The options of `@app.job`."""

SUBMIT_OPTIONS = (
    "key",
    "key_for",
    "queue",
    "priority",
    "delay",
    "at",
    "tags",
    "meta",
    "expires",
    "unique",
    "connection",
    "budget",
)
"""The options of `submit`, besides the job's own arguments."""

SUBMIT_MANY_OPTIONS = tuple(name for name in SUBMIT_OPTIONS if name != "key")
"""The options of `submit_many`. A key would belong to only one of the jobs."""

MAP_OPTIONS = tuple(name for name in SUBMIT_MANY_OPTIONS if name not in ("connection", "unique"))
"""The options of a job's `map` through `with_options`. It waits for jobs, which an open transaction would hide, and
each of its items has a job of its own.
"""

WORDS = 100
"""How many words a job may need, or a worker have."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")

RESERVED = frozenset(SUBMIT_OPTIONS)
"""Names that a job's parameter can't have: the options of `submit`."""


def check_options(what: str, options: Iterable[str], known: Sequence[str]) -> None:
    """Refuse an unknown option, and suggest the one that was probably meant."""
    for name in options:
        if name not in known:
            hint = suggest(name, known) or f"; it takes {', '.join(known)}"
            raise UnknownOption(f"{what} takes no {name!r}{hint}")


def check_submit_names(type: str, kwargs: Mapping[str, Any], signature: Signature) -> None:
    """Refuse a name that is neither an argument of the job nor an option of `submit`."""
    for name in signature.unknown_names(kwargs):
        if name in SUBMIT_OPTIONS:  # only where `with_options` has taken the options
            raise UnknownOption(f"{type}: {name} is an option; give it to with_options({name}=…), not to its submit")
        hint = suggest(name, [*signature.names, *SUBMIT_OPTIONS])
        takes = f"; {type} takes {', '.join(signature.names) or 'no arguments'}"
        raise UnknownOption(f"{type}.submit takes no {clipped(name)!r}{hint or takes}")


def check_signature_names(type: str, kwargs: Mapping[str, Any], signature: Signature) -> None:
    """Refuse an option of `submit` among the arguments of a signature."""
    for name in signature.unknown_names(kwargs) if kwargs else ():
        if name in SUBMIT_OPTIONS:
            raise UnknownOption(f"{type}.s: {name} is an option; write {type}.with_options({name}=…).s(…)")


def options_checked(what: str) -> Callable[[F], F]:
    """Make a function refuse an unknown keyword argument and suggest the one that was probably meant."""

    def decorate(function: F) -> F:
        known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        places = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            check_options(what, [name for name in kwargs if name not in places], known)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def check_parameters(function: Any) -> None:
    """Refuse a job's parameter that has the name of an option of `submit`."""
    taken = sorted(RESERVED & inspect.signature(function).parameters.keys())
    if taken:
        raise Invalid(
            f"job {function.__name__}: a parameter can't be called {taken[0]!r}, which is an option of submit"
        )


def check_step_name(name: str | None) -> None:
    """Refuse a step name that its records can't start with."""
    if name is not None and not _is_step_name(name):
        raise Invalid(f"{name!r} can't be a step's name; give a name that doesn't start with '~'")


def check_step_key(name: str, key: Any, function: Any) -> None:
    """Refuse a key that is a parameter's name as text: it would be the same for every call."""
    if isinstance(key, str) and key in inspect.signature(function).parameters:
        raise Invalid(f"step {name}: key={key!r} is the same for every call; write key=lambda …: {key}")


def check_callback(what: str, function: Any) -> Any:
    """Return the undo or cleanup function, or None. Refuse anything else."""
    if _is_step(function):
        raise Invalid(f"{what}={function!r}: give a plain function, not a step; Holdfast records it anyway")
    if function is not None and not callable(function):
        raise Invalid(f"{what}={function!r}: give a function")
    if is_generator(function):
        raise Invalid(f"{what}={place_of(function)}: {NO_GENERATOR}")
    return function


def check_map(name: str, at_once: int, need: int | None) -> None:
    """Refuse a map that could never start or never succeed."""
    if type(at_once) is not int or at_once < 1:
        raise Invalid(f"{name}.map(at_once={at_once!r}): give how many items may run at once, at least 1")
    if need is not None and (type(need) is not int or need < 0):
        raise Invalid(f"{name}.map(need={need!r}): give how many items must succeed, 0 or more")


def parse_retries(retries: int | Retry) -> Retry:
    """Return the retry policy that a number of retries means."""
    if not isinstance(retries, Retry) and type(retries) is not int:
        raise Invalid(f"retries={retries!r}: give the number of retries, or a holdfast.Retry")
    return check_retry(retries if isinstance(retries, Retry) else Retry(retries=retries))


def parse_limit(name: str, duration: Duration | None) -> int | None:
    """Return a time limit in milliseconds, or None for no limit. Refuse 0: it would be over before it starts."""
    if duration is None:
        return None
    limit = milliseconds(duration)
    if limit == 0:
        raise Invalid(f"{name}={duration!r}: give a time above 0, or None for no limit")
    return limit


def parse_most_children(type: str, most: Any) -> int:
    """Return how many children one job may submit. Refuse what isn't a number of jobs."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise Invalid(f"job {type}: most_children={most!r}: give a whole number, 0 or more")
    return most


def parse_isolation(kind: str, function: Any, isolate: Any, memory_mb: Any) -> bool:
    """Return whether a step or job runs in a separate process. Refuse a function that can't run there."""
    what = f"{kind} {function.__name__}"
    if isolate not in (None, "process"):
        raise Invalid(f"{what}: isolate={isolate!r} is unknown; use isolate='process' or leave it out")
    if memory_mb is not None and (isolate is None or type(memory_mb) is not int or memory_mb < 1):
        raise Invalid(f"{what}: memory_mb={memory_mb!r}: give megabytes, together with isolate='process'")
    if isolate is not None:
        check_importable(function)
    return isolate is not None


def parse_effect(name: str, effect: Any, key: Any, retries: Any, isolate: Any) -> str | None:
    """Return a step's effect. Refuse one that doesn't go with the step's other options."""
    if effect is None:
        return None
    if effect == TRANSACTION:
        if isolate is not None:
            raise Invalid(f"step {name}: a transaction can't cross into another process; leave out isolate")
        return TRANSACTION
    if effect != "once":
        raise Invalid(f"step {name}: effect={effect!r} is unknown; use 'once' or 'transaction'")
    if key is None:
        raise Invalid(f"step {name}: effect='once' needs key=, so that a person can tell which effect it is")
    if retries != 0:
        raise Invalid(f"step {name}: effect='once' is never retried automatically; leave out retries")
    return "once"


def parse_old_names(name: str, was: Any) -> tuple[str, ...]:
    """Return the earlier names of a step, oldest first."""
    if was is None:
        return ()
    names = (was,) if isinstance(was, str) else tuple(was) if isinstance(was, tuple | list) else ()
    if not names or not all(map(_is_step_name, names)) or len(set(names)) < len(names):
        raise Invalid(f"step {name}: was={was!r}: give the step's earlier name, or a tuple of names, oldest first")
    if name in names:
        raise Invalid(f"step {name}: was={was!r} is the step's present name; give its earlier name")
    return names


def parse_stages(stages: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of a job's stages. Each is given as a step or as a name."""
    return tuple(_stage_name(stage) for stage in stages)


def parse_words(what: str, given: Any) -> frozenset[str]:
    """Return what a job needs, or a worker has: short words."""
    words = frozenset(given) if isinstance(given, set | frozenset | list | tuple) else None
    if words is None or not all(isinstance(word, str) and _WORD.fullmatch(word) for word in words):
        raise Invalid(f"{what}={given!r}: give a set of words of letters, digits, '.', '_' and '-': {{'gpu'}}")
    if len(words) > WORDS:
        raise Invalid(f"{what}: {len(words)} words are too many; give at most {WORDS}")
    return words


def parse_secrets(secrets: Any) -> list[str]:
    """Return the secrets of an App. No message shows one."""
    if isinstance(secrets, str) or not all(isinstance(one, str) for one in secrets):
        raise Invalid("secrets=: give a list of texts, for example secrets=[os.environ['OPENAI_API_KEY']]")
    for number, secret in enumerate(secrets, 1):
        if len(secret) < LEAST_CHARACTERS:
            raise Invalid(f"secrets=: number {number} has fewer than {LEAST_CHARACTERS} characters; is it set?")
    return list(secrets)


def parse_queues(queues: Sequence[str]) -> tuple[str, ...]:
    """Return the queues that a worker takes jobs from. Refuse a plain string."""
    if isinstance(queues, str) or not queues:
        raise Invalid(f"queues={queues!r}: give a list of queues, for example ['video'], or leave it out for all")
    return tuple(check_queue(queue) for queue in queues)


def _is_step_name(name: Any) -> bool:
    return isinstance(name, str) and name != "" and not name.startswith("~")


def _is_step(value: Any) -> bool:
    return isinstance(getattr(value, "spec", None), StepSpec)


def _stage_name(stage: Any) -> str:
    if _is_step(stage):
        name: str = stage.name
        return name
    if isinstance(stage, str) and stage:
        return stage
    raise Invalid(f"stages: {stage!r} is not a stage; give steps or their names")
