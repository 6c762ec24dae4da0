"""What happened in a run, as lines that a person can read. Must not be part of what is hashed."""

from typing import Any

from msgspec import Struct

from holdfast.core.model import Applied, Beat, Change, Conflict, Inserted, Job, Lease, Presence, Recorded, Step


def line_of(parts: tuple[Any, ...]) -> str:
    """One thing that happened: its time, then the rest in short."""
    at, *rest = parts
    return f"{at / 1e6:9.3f}  " + "  ".join(short(part) for part in rest)


def short(value: Any) -> str:
    """A value in a few words."""
    match value:
        case Job():
            owner = f" by {value.worker}" if value.worker else ""
            return f"{value.type} {value.id[-6:]} {value.state} v{value.version} e{value.epoch}{owner}"
        case Change():
            expects = ", ".join(
                f"{name} {wanted}"
                for name, wanted in (("epoch", value.epoch), ("version", value.version))
                if wanted is not None
            )
            more = "".join(f" +{short(step)}" for step in value.steps) + (
                f" takes {value.takes}" if value.takes else ""
            )
            return f"{value.event} {short(value.job)} by {value.by} if {expects}{more} {dict(value.note) or ''}"
        case Step():
            return f"{value.path} {value.state} e{value.epoch} of {value.job[-6:]} {value.result or ''}"
        case Recorded():
            return "first" if value.first else f"there was {short(value.step)}"
        case Applied():
            return f"v{value.version}"
        case Conflict():
            return f"CONFLICT {value.reason}: {value.state} v{value.version} e{value.epoch}"
        case Inserted():
            return f"{value.id[-6:]}{'' if value.new else ' known'}"
        case Lease():
            return f"{value.job[-6:]} e{value.epoch}"
        case Presence():
            running = ", ".join(f"{one.job[-6:]} e{one.epoch} {one.stage}" for one in value.running)
            return f"{value.worker} [{running}]{' leaves' if value.leaving else ''}"
        case Beat():
            told = {name: getattr(value, name) for name in ("cancelled", "lost", "stray", "paused", "quiet")}
            return " ".join(f"{name} {short(one)}" for name, one in told.items() if one) or "ok"
        case str():
            return value[-6:] if len(value) == 36 and value.count("-") == 4 else value
        case list() | tuple():
            return f"({', '.join(short(one) for one in value)})"
        case Struct():
            return type(value).__name__
        case _:
            return str(value)
