"""The files in `deploy` that other programs read or run."""

import os
import re
import shutil
import ssl
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_repository import REPOSITORY, kept_files

UNITS = ("fedlens.service", "fedlens-backup.service", "fedlens-backup.timer")
# Another user than root, where root runs the tests.
USER = "nobody" if os.geteuid() == 0 else None


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_every_line_of_the_units(tmp_path: Path) -> None:
    for name in UNITS:
        unit = (REPOSITORY / "deploy" / name).read_text(encoding="utf-8")
        # systemd-analyze looks for the program.
        (tmp_path / name).write_text(unit.replace("/opt/fedlens/.venv/bin/fedlens", "/bin/true"), encoding="utf-8")

    done = subprocess.run(
        ["systemd-analyze", "verify", *(tmp_path / name for name in UNITS)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of `USER`, which may not enter those of pytest, with a copy of the repository."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in kept_files():
            copy = folder / "src" / path.relative_to(REPOSITORY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        if USER is not None:
            for path in (folder, *folder.rglob("*")):
                shutil.chown(path, USER)
        yield folder


@pytest.mark.slow
def test_what_the_image_installs_serves_without_torch_and_without_rights(home: Path) -> None:
    plain = {"PATH": os.environ["PATH"], "HOME": str(home)}
    fedlens = home / "venv" / "bin" / "fedlens"
    for command in (
        [home / "src" / "deploy" / "install-server.sh", home / "src", home / "venv"],
        [fedlens, "serve", "--init", home / "server", "--port", "0", "--admin-port", "0"],
    ):
        subprocess.run(command, check=True, cwd=home, env=plain, user=USER)

    serve = [fedlens, "serve", "--config", home / "server" / "fedlens.toml"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=home, env=plain, user=USER) as server:
        try:
            assert server.stdout is not None
            ready = re.search(r"clients at (\S+),", server.stdout.readline())
            assert ready is not None
            trust = ssl.create_default_context(cafile=home / "server" / "ca.pem")
            with urllib.request.urlopen(f"{ready[1]}/healthz", context=trust, timeout=5) as answer:
                status = answer.status
        finally:
            server.terminate()

    assert status == 200
    assert server.returncode == 0
