"""The fake server beside a test that is not asynchronous, such as one of a command."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.edge_client.fakes import FakeServer


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """Serve from a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
