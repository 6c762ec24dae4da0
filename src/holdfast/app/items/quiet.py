"""What Python prints of an error that leaves `run_items` and that nobody catches: none of our frames.

Must not change the error itself: whoever catches it gets it as it is.
"""

import sys
from pathlib import Path
from types import TracebackType
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

OURS = Path(__file__).resolve().parents[1]
MARK = "_holdfast_told"


def quietly(error: E) -> E:
    """The error, to be raised anew. If nobody catches it, Python's report ends with the caller's own line. Of an
    interrupt there is no report: the summary has told of it.
    """
    setattr(error, MARK, True)
    if not getattr(sys.excepthook, MARK, False):
        before = sys.excepthook

        def hook(kind: type[BaseException], found: BaseException, trace: TracebackType | None) -> None:
            if getattr(found, MARK, False):
                if isinstance(found, KeyboardInterrupt):
                    return
                trace = _without_ours(trace)
                found = found.with_traceback(trace)
            before(kind, found, trace)

        setattr(hook, MARK, True)
        sys.excepthook = hook
    return error.with_traceback(None)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """A traceback up to the frames of this package."""
    if trace is None or Path(trace.tb_frame.f_code.co_filename).is_relative_to(OURS):
        return None
    return TracebackType(_without_ours(trace.tb_next), trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
