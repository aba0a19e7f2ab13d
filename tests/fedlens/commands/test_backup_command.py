"""`fedlens backup` against a server in this process, and `fedlens restore` of what it names."""

import asyncio
from pathlib import Path

from tests.fedlens.commands.cli import error_text, fedlens
from tests.server.http.running import ADMIN_TOKEN, running


async def test_a_backup_is_named_by_the_path_that_restore_takes(tmp_path: Path) -> None:
    folder = tmp_path / "of Zoë: all"
    async with running(tmp_path / "server", backups=folder) as server:
        (tmp_path / "admin.toml").write_text(f'url = "{server.admin_url}"\n')
        made = await asyncio.to_thread(
            fedlens, "backup", "--admin", tmp_path / "admin.toml", FEDLENS_ADMIN_TOKEN=ADMIN_TOKEN
        )
    place = made.stdout.rpartition(": ")[0]

    checked = fedlens("restore", place, "--check")

    assert Path(place).parent == folder
    assert checked.stdout.startswith(f"{place} is whole\n")


def test_a_mistyped_path_is_told_to_hold_no_backup(tmp_path: Path) -> None:
    told = error_text(fedlens("restore", tmp_path / "mistyped", "--check"))

    assert told.startswith(f"fedlens: there is no whole backup at {tmp_path}/mistyped; name one that `fedlens backup`")
