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
from typer.testing import Result

from tests.fedlens.commands.cli import error_text, fedlens

FEDLENS = Path(sys.executable).parent / "fedlens"
_ADDRESS = r"(https://127\.0\.0\.1:\d+|unix:/\S+)"
READY = re.compile(rf"fedlens: ready, clients at {_ADDRESS}, operators at {_ADDRESS}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = fedlens("serve", "--init", tmp_path, "--port", "0", "--admin-port", "0")
    assert made.exit_code == 0, made.output
    return tmp_path


def ended(folder: Path) -> str:
    """The error text of a server that ends at once."""
    command = [FEDLENS, "serve", "--config", folder / "fedlens.toml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


@contextmanager
def serving(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A process that is ready, and the operators' address."""
    command, pipe = [FEDLENS, "serve", "--config", folder / "fedlens.toml"], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready = READY.fullmatch(line)
            assert ready is not None, line or process.communicate()
            yield process, ready[2]
        finally:
            process.kill()


def task_list(folder: Path, url: str, ca: str = "ca.pem", token_file: str = "admin.token") -> Result:
    profile = folder / "profile.toml"
    profile.write_text(f'url = "{url}"\nca = "{ca}"\ntoken_file = "{token_file}"\n')
    return fedlens("task", "list", "--json", "--admin", profile, FEDLENS_ADMIN_TOKEN="")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_server_made_by_init_is_reached_and_stops_in_good_order(folder: Path, how: signal.Signals) -> None:
    with serving(folder) as (process, url):
        listed = task_list(folder, url)
        process.send_signal(how)
        _, log = process.communicate(timeout=20)

    assert json.loads(listed.stdout) == []
    assert process.returncode == 0, log
    assert "Traceback" not in log


def test_operators_of_the_same_machine_come_through_a_unix_socket(folder: Path) -> None:
    config = folder / "fedlens.toml"
    config.write_text(config.read_text().replace('host = "127.0.0.1"\nport = 0\ntoken', 'socket = "admin.sock"\ntoken'))

    with serving(folder) as (_, url):
        listed = task_list(folder, url)
    gone = error_text(task_list(folder, url))

    assert url == f"unix:{folder / 'admin.sock'}"
    assert json.loads(listed.stdout) == []
    assert f"{url} cannot be reached: Connection refused; is the server running?" in gone


def test_what_is_wrong_with_a_connection_is_named(folder: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(folder / "other.pem"))
    (folder / "wrong.token").write_text("wrong")

    with serving(folder) as (_, url):
        foreign_ca = error_text(task_list(folder, url, ca="other.pem"))
        wrong_token = error_text(task_list(folder, url, token_file="wrong.token"))
        plain = error_text(task_list(folder, url.replace("https:", "http:")))
        wrong_port = error_text(task_list(folder, "https://127.0.0.1:1"))

    assert "is not trusted" in foreign_ca and "`ca` in the profile" in foreign_ca
    assert "does not accept the token" in wrong_token
    assert "where the server speaks HTTPS, let `url` of the profile begin with https://" in plain
    assert "cannot be reached" in wrong_port


@pytest.mark.slow
def test_a_folder_serves_one_process_at_a_time(folder: Path) -> None:
    with serving(folder):
        second = ended(folder)

    assert "in use" in second


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("port = 0", 'port = "abc"'), "fedlens.toml: server.port: found 'abc', must be an integer from 0 to 65535"),
        (('"server.pem"', '"gone.pem"'), "server.certfile: found "),
        (('"server.key"', '"ca.pem"'), "ca.pem holds no private key (PEM)"),
        (
            ('host = "127.0.0.1"\nport', 'host = "203.0.113.1"\nport'),
            "server.host: cannot listen on 203.0.113.1:0: this machine has no such",
        ),
    ],
)
def test_a_config_that_cannot_be_used_ends_with_the_reason(
    folder: Path, change: tuple[str, str], expected: str
) -> None:
    path = folder / "fedlens.toml"
    path.write_text(path.read_text().replace(*change, 1))

    assert expected in error_text(fedlens("serve", "--config", path))


def test_each_fault_of_a_config_has_a_line_with_its_path(folder: Path) -> None:
    path = folder / "fedlens.toml"
    path.write_text(path.read_text().replace("port = 0", "port = -1"))

    result = fedlens("serve", "--config", path)

    keys = ("server.port", "admin.port")
    for line, key in zip(result.stderr.splitlines(), keys, strict=True):
        assert line.startswith(f"fedlens: {path}: {key}: found -1, must be")


def test_a_file_in_place_of_the_data_folder_is_told(folder: Path) -> None:
    (folder / "data").rename(folder / "unmounted")
    (folder / "data").touch()

    told = error_text(fedlens("serve", "--config", folder / "fedlens.toml"))

    assert told == f"fedlens: server.data: {folder / 'data'} is a file, not a folder"


def test_a_server_whose_data_disk_is_missing_ends_with_the_reason_and_makes_no_state(folder: Path) -> None:
    (folder / "data").rename(folder / "unmounted")

    told = error_text(fedlens("serve", "--config", folder / "fedlens.toml"))

    assert told.startswith(f"fedlens: server.data: {folder / 'data'} holds no server's state")
    assert len(told.splitlines()) == 1
    assert not (folder / "data").exists()


def test_an_empty_database_is_no_state_and_blobs_beside_it_stay(folder: Path) -> None:
    blob = folder / "data" / "blobs" / ("0f" * 32)
    blob.write_bytes(b"a model")
    (folder / "data" / "server.sqlite3").write_bytes(b"")
    for left in (folder / "data").glob("server.sqlite3-*"):
        left.unlink()
    config = ("serve", "--config", folder / "fedlens.toml")

    refused, again = error_text(fedlens(*config)), error_text(fedlens(*config, "--new-data"))

    assert "data holds no server's state" in refused
    assert "holds blobs of a state, whose database is missing or empty; restore" in again
    assert blob.read_bytes() == b"a model"


def test_two_ports_that_are_one_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    refused = fedlens("serve", "--init", tmp_path / "new", "--port", "7000", "--admin-port", "7000")

    assert "--admin-port: found 7000, the same as --port" in error_text(refused)
    assert list(tmp_path.iterdir()) == []


def test_a_new_state_is_made_for_a_config_where_there_is_none_and_only_there(folder: Path) -> None:
    (folder / "data").rename(folder / "unmounted")
    made, again = [fedlens("serve", "--new-data", "--config", folder / "fedlens.toml") for _ in range(2)]
    with serving(folder) as (_, url):
        listed = task_list(folder, url)

    assert made.exit_code == 0, made.output
    assert "holds a server's state already" in error_text(again)
    assert json.loads(listed.stdout) == []


def test_a_new_state_is_not_made_where_a_disk_may_be_missing(folder: Path) -> None:
    config = folder / "fedlens.toml"
    config.write_text(config.read_text().replace('data = "data"', 'data = "disk/data"'))

    assert f"there is no folder {folder / 'disk'}" in error_text(fedlens("serve", "--new-data", "--config", config))
    assert not (folder / "disk").exists()


def test_init_leaves_a_state_alone_and_writes_nothing_beside_it(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "data":
            path.unlink()

    assert "holds a server's state already" in error_text(fedlens("serve", "--init", folder))
    assert [path.name for path in folder.iterdir()] == ["data"]


def test_init_does_not_overwrite(folder: Path) -> None:
    before = (folder / "fedlens.toml").read_bytes()

    assert "exists already" in error_text(fedlens("serve", "--init", folder))
    assert (folder / "fedlens.toml").read_bytes() == before


def test_init_for_an_outside_address_says_what_is_missing(tmp_path: Path) -> None:
    made = fedlens("serve", "--init", tmp_path, "--host", "0.0.0.0")

    assert made.exit_code == 0
    assert "put a certificate for its name into" in made.stdout


def test_init_and_config_exclude_each_other(tmp_path: Path) -> None:
    assert "exclude each other" in error_text(fedlens("serve", "--init", tmp_path, "--config", "fedlens.toml"))


def test_an_address_without_init_is_refused_and_not_ignored(tmp_path: Path) -> None:
    assert "go with --init" in error_text(fedlens("serve", "--port", 9000, "--config", tmp_path / "fedlens.toml"))
