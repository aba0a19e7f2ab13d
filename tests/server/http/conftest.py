from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.http.running import Server, running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path) as started:
        yield started
