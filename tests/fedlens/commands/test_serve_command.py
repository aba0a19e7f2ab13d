"""`fedlens serve` as a process of its own."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from typer.testing import CliRunner

from fedlens.cli import app

FEDLENS = Path(sys.executable).parent / "fedlens"
READY = re.compile(r"fedlens: ready, clients at (https://127\.0\.0\.1:\d+), operators at (https://127\.0\.0\.1:\d+)\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = CliRunner().invoke(app, ["serve", "--init", str(tmp_path), "--port", "0", "--admin-port", "0"])
    assert made.exit_code == 0, made.output
    return tmp_path


@contextmanager
def serving(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A process that is ready, and the operators' address."""
    with subprocess.Popen(
        [FEDLENS, "serve", "--config", folder / "fedlens.toml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready = READY.fullmatch(line)
            assert ready is not None, line or process.communicate()
            yield process, ready[2]
        finally:
            process.kill()


def task_list(folder: Path, url: str, ca: str = "ca.pem", token_file: str = "admin.token"):  # type: ignore[no-untyped-def]
    profile = folder / "profile.toml"
    profile.write_text(f'url = "{url}"\nca = "{ca}"\ntoken_file = "{token_file}"\n')
    return CliRunner().invoke(app, ["task", "list", "--json", "--admin", str(profile)], env={"FEDLENS_ADMIN_TOKEN": ""})


def test_a_server_made_by_init_is_reached_and_stops_in_good_order(folder: Path) -> None:
    with serving(folder) as (process, url):
        listed = task_list(folder, url)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)

    assert json.loads(listed.stdout) == []
    assert process.returncode == 0, log
    assert "Traceback" not in log


def test_an_interrupt_stops_it_too(folder: Path) -> None:
    with serving(folder) as (process, _):
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=20)

    assert (process.returncode, "Traceback" in log) == (0, False)


def test_what_is_wrong_with_a_connection_is_named(folder: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(folder / "other.pem"))
    (folder / "wrong.token").write_text("wrong")

    with serving(folder) as (_, url):
        foreign_ca = task_list(folder, url, ca="other.pem")
        wrong_token = task_list(folder, url, token_file="wrong.token")
        plain = task_list(folder, url.replace("https:", "http:"))
        wrong_port = task_list(folder, "https://127.0.0.1:1")

    assert [result.exit_code for result in (foreign_ca, wrong_token, plain, wrong_port)] == [1, 1, 1, 1]
    assert "is not trusted" in foreign_ca.stderr and "`ca` in the profile" in foreign_ca.stderr
    assert "does not accept the token" in wrong_token.stderr
    assert "where the server speaks HTTPS, let `url` of the profile begin with https://" in plain.stderr
    assert "cannot be reached" in wrong_port.stderr


def test_a_folder_serves_one_process_at_a_time(folder: Path) -> None:
    with serving(folder):
        second = subprocess.run(
            [FEDLENS, "serve", "--config", folder / "fedlens.toml"], capture_output=True, text=True, timeout=20
        )

    assert second.returncode == 1
    assert "in use" in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("port = 0", 'port = "abc"'), "fedlens.toml: server.port: found 'abc', must be an integer from 0 to 65535"),
        (('"server.pem"', '"gone.pem"'), "server.certfile: found "),
        (('"server.key"', '"ca.pem"'), "are no certificate with its key"),
        (('host = "127.0.0.1"\nport', 'host = "203.0.113.1"\nport'), "server.port: cannot listen on 203.0.113.1:0"),
    ],
)
def test_a_config_that_cannot_be_used_ends_with_the_reason(
    folder: Path, change: tuple[str, str], expected: str
) -> None:
    path = folder / "fedlens.toml"
    path.write_text(path.read_text().replace(*change, 1))

    done = subprocess.run([FEDLENS, "serve", "--config", path], capture_output=True, text=True, timeout=20)

    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_whose_data_disk_is_missing_ends_with_the_reason_and_makes_no_state(folder: Path) -> None:
    (folder / "data").rename(folder / "unmounted")

    done = subprocess.run(
        [FEDLENS, "serve", "--config", folder / "fedlens.toml"], capture_output=True, text=True, timeout=20
    )

    assert done.returncode == 1
    assert done.stderr.startswith(f"fedlens: server.data: {folder / 'data'} holds no server's state")
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "data").exists()


def test_a_new_state_is_made_for_a_config_where_there_is_none_and_only_there(folder: Path) -> None:
    (folder / "data").rename(folder / "unmounted")
    arguments = ["serve", "--new-data", "--config", str(folder / "fedlens.toml")]

    made, again = CliRunner().invoke(app, arguments), CliRunner().invoke(app, arguments)
    with serving(folder) as (_, url):
        listed = task_list(folder, url)

    assert made.exit_code == 0, made.output
    assert again.exit_code == 1
    assert "holds a server's state already" in again.stderr
    assert json.loads(listed.stdout) == []


def test_a_new_state_is_not_made_where_a_disk_may_be_missing(folder: Path) -> None:
    config = folder / "fedlens.toml"
    config.write_text(config.read_text().replace('data = "data"', 'data = "disk/data"'))

    made = CliRunner().invoke(app, ["serve", "--new-data", "--config", str(config)])

    assert made.exit_code == 1
    assert f"there is no folder {folder / 'disk'}" in made.stderr
    assert not (folder / "disk").exists()


def test_init_leaves_a_state_alone_and_writes_nothing_beside_it(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "data":
            path.unlink()

    again = CliRunner().invoke(app, ["serve", "--init", str(folder)])

    assert again.exit_code == 1
    assert "holds a server's state already" in again.stderr
    assert [path.name for path in folder.iterdir()] == ["data"]


def test_init_does_not_overwrite(folder: Path) -> None:
    before = (folder / "fedlens.toml").read_bytes()

    again = CliRunner().invoke(app, ["serve", "--init", str(folder)])

    assert again.exit_code == 1
    assert "exists already" in again.stderr
    assert (folder / "fedlens.toml").read_bytes() == before


def test_init_for_an_outside_address_says_what_is_missing(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["serve", "--init", str(tmp_path), "--host", "0.0.0.0"])

    assert made.exit_code == 0
    assert "put a certificate for its name into" in made.stdout


def test_init_and_config_exclude_each_other(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "--init", str(tmp_path), "--config", "fedlens.toml"])

    assert result.exit_code == 1
    assert "exclude each other" in result.stderr
