"""For your own tests: your App in memory, a clock to advance, a pretend provider, and `crash_everywhere`.

Needs no pytest: everything here is plain Python, for blocking and for async tests. Nothing else of ours may import it.
"""

from holdfast.testing.crash import Crash, crash_everywhere
from holdfast.testing.memory import in_memory
from holdfast.testing.moments import Boundary
from holdfast.testing.provider import Provider
from holdfast.testing.store import Clock

__all__ = ["in_memory", "Clock", "Provider", "crash_everywhere", "Crash", "Boundary"]
