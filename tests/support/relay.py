"""What stands between clients and a server in tests: it listens on a free port, on a thread and loop of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

WAIT_SECONDS = 10.0
"""How long anything here may take."""


class Relay:
    """Listens for as long as its `with` block takes. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=type(self).__name__, daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.do(self.listen())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    def through(self, url: str) -> str:
        """The same URL, by way of this relay."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run this on its own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    async def listen(self) -> None:
        """Open what it needs, and its port."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close what it opened."""
        raise NotImplementedError
