"""The files in `deploy` that other programs read or run."""

import os
import re
import shutil
import ssl
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from fedlens_server.config import Config, load
from tests.test_repository import REPOSITORY, kept_files

DEPLOY = REPOSITORY / "deploy"
UNITS = ("fedlens.service", "fedlens-backup.service", "fedlens-backup.timer")
# Another user than root, where root runs the tests.
USER = "nobody" if os.geteuid() == 0 else None


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_every_line_of_the_units(tmp_path: Path) -> None:
    for name in UNITS:
        unit = (DEPLOY / name).read_text(encoding="utf-8")
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


def compose_config(folder: Path) -> Config:
    """The config of `compose.yaml`, with a token's digest."""
    path = folder / "fedlens.toml"
    path.write_text((DEPLOY / "compose.toml").read_text(encoding="utf-8").replace("0" * 64, "5" * 64))
    return load(path)


def test_compose_runs_the_image_with_nginx_as_its_trusted_proxy(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    server, nginx = compose["services"]["server"], compose["services"]["nginx"]
    settings = compose_config(tmp_path)

    dockerfile = DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]
    mounted = {Path(volume.split(":")[1]) for volume in server["volumes"]}
    image = dockerfile.read_text(encoding="utf-8")
    addresses = [ip_address(each["networks"]["inside"]["ipv4_address"]) for each in (server, nginx)]
    subnet = ip_network(compose["networks"]["inside"]["ipam"]["config"][0]["subnet"])

    assert dockerfile.resolve() == DEPLOY / "Dockerfile"
    assert mounted == {settings.server.data, settings.server.backups, Path("/etc/fedlens")}
    assert all(str(folder) in image for folder in mounted)
    assert settings.server.trusted_proxies == (ip_network(addresses[1]),)
    assert all(address in subnet for address in addresses)


def test_composes_nginx_speaks_to_its_server(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    shell, option, command = services["nginx"]["command"]
    written = tmp_path / "default.conf"

    here = (
        command.replace("/etc/nginx/conf.d/default.conf", str(written))
        .replace("/fedlens.conf", str(DEPLOY / "nginx" / "fedlens.conf"))
        .replace("exec nginx", "exec echo nginx")
    )
    said = subprocess.run([shell, option, here], check=True, capture_output=True, text=True).stdout

    address = services["server"]["networks"]["inside"]["ipv4_address"]
    upstream = f"server {address}:{compose_config(tmp_path).server.port} max_fails=0;"
    assert said == "nginx -g daemon off;\n"
    assert upstream in written.read_text(encoding="utf-8")


def test_the_unit_and_nginx_have_the_socket_in_one_place() -> None:
    unit = (DEPLOY / "fedlens.service").read_text(encoding="utf-8")
    paths = {
        name: re.findall(r"/run/\w+(?=/clients\.sock)", (DEPLOY / name).read_text(encoding="utf-8"))
        for name in ("fedlens.toml", "nginx/fedlens.conf")
    }

    (folder,) = re.findall(r"^RuntimeDirectory=(\w+)$", unit, re.MULTILINE)
    assert paths == {name: [f"/run/{folder}"] for name in paths}
