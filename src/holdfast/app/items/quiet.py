"""Makes Python's report of an uncaught error from `run_items` leave out our frames.

Must not change the error itself: code that catches it gets the original.
"""

import sys
from pathlib import Path
from types import TracebackType
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

OURS = Path(__file__).resolve().parents[1]
MARK = "_holdfast_told"


def without_report(error: E) -> E:
    """Return the error, ready to be raised.

    If nobody catches it, Python's report ends with the caller's own line. An interrupt gets no report, because the
    summary has already mentioned it.
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
    """Return the traceback without the frames of this package."""
    if trace is None or Path(trace.tb_frame.f_code.co_filename).is_relative_to(OURS):
        return None
    return TracebackType(_without_ours(trace.tb_next), trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
