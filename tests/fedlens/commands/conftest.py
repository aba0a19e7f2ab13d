"""A server in this process with a profile, and commands that speak to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.fedlens.commands.cli import fedlens
from tests.server.http.running import ADMIN_TOKEN, Server, running

Command = Callable[..., Awaitable[Result]]


@pytest.fixture
async def administered(tmp_path: Path) -> AsyncIterator[Server]:
    """A server, whose profile is `admin.toml` in the test's folder."""
    async with running(tmp_path / "server") as started:
        (tmp_path / "admin.token").write_text(f"{ADMIN_TOKEN}\n")
        (tmp_path / "admin.toml").write_text(f'url = "{started.admin_url}"\ntoken_file = "admin.token"\n')
        yield started


@pytest.fixture
def operate(tmp_path: Path) -> Command:
    """Run a command of operators, with the token of the config or another one."""

    async def run(*arguments: object, token: str = "") -> Result:
        variables = {"FEDLENS_ADMIN": str(tmp_path / "admin.toml"), "FEDLENS_ADMIN_TOKEN": token}
        return await asyncio.to_thread(fedlens, *arguments, **variables)

    return run
