"""What an operator is told of faults on this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fedlens.admin_client import TOKEN_VARIABLE, AdminClient, AdminError, Profile


class OneByte(BaseHTTPRequestHandler):
    """Answers with one byte."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"x")

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def one_answer() -> Iterator[str]:
    """The address of a server that answers one request."""
    with HTTPServer(("127.0.0.1", 0), OneByte) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        thread.join()


def test_a_full_disk_is_not_told_as_a_server_out_of_reach() -> None:
    with one_answer() as url, Path("/dev/full").open("wb", buffering=0) as full:
        with pytest.raises(AdminError, match=r"^the blob cannot be written: No space left on device$"):
            AdminClient(Profile(url=url, token="x")).fetch(bytes(32), full)


def test_a_ca_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    profile = Profile(url="https://127.0.0.1:1", token="x", ca=tmp_path / "gone.pem")

    with pytest.raises(AdminError, match=r"gone\.pem: cannot be read: No such file or directory"):
        AdminClient(profile).tasks()


@pytest.mark.parametrize("call", [lambda client: client.revoke_token("phones"), lambda client: client.delete("task")])
def test_what_is_not_fedlens_has_done_nothing(call: Callable[[AdminClient], None]) -> None:
    with one_answer() as url, pytest.raises(AdminError, match="answered 200 OK, which is no answer of FedLens"):
        call(AdminClient(Profile(url=url, token="x")))


@pytest.mark.parametrize(
    "content", ["", "secret\nhttps://fl.example.org/join#token=secret\n", "\ufeffsecret", "two words"]
)
def test_a_file_that_holds_no_token_is_named_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    (tmp_path / "admin.token").write_text(content)
    (tmp_path / "admin.toml").write_text('url = "http://127.0.0.1:1"\ntoken_file = "admin.token"\n')

    with pytest.raises(AdminError, match=r"admin\.token: holds no token, which is one line of printable") as refused:
        Profile.read(tmp_path / "admin.toml")
    assert "secret" not in str(refused.value)

    monkeypatch.setenv(TOKEN_VARIABLE, "two words")
    with pytest.raises(AdminError, match=f"{TOKEN_VARIABLE}: holds no token"):
        Profile.read(tmp_path / "admin.toml")
