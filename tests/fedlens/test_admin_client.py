"""What an operator is told of faults on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fedlens.admin_client import AdminClient, AdminError, Profile


class OneByte(BaseHTTPRequestHandler):
    """Answers with one byte."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"x")

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
