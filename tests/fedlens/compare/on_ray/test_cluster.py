"""What `--ray` says when there is no Ray to be used."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedlens.compare.on_ray import cluster
from fedlens.compare.on_ray.cluster import RayConfig, RayUnusable, connected


class SilentHandler(BaseHTTPRequestHandler):
    """Answers every request with an error, and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def refusal(address: str) -> str:
    with pytest.raises(RayUnusable) as refused, connected(RayConfig(address=address), 1):
        pass
    return str(refused.value)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)

    assert refusal("here") == "--ray: Ray is not installed; install it with: pip install 'fedlens[ray]'"


def test_an_address_where_nobody_listens_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: Path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        assert refusal(address) == (
            f"--ray: no Ray answers at {address}: Connection refused; start it with `ray start --head`, or give "
            "--ray here"
        )


def test_another_server_at_the_address_is_told_from_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: Path)
    with ThreadingHTTPServer(("127.0.0.1", 0), SilentHandler) as server:
        threading.Thread(target=server.serve_forever).start()

        found = refusal(f"127.0.0.1:{server.server_port}")

        server.shutdown()
    assert "something else does" in found


@pytest.mark.parametrize("address", ["there", "ray://127.0.0.1:10001", "127.0.0.1:x", "127.0.0.1:70000", ":6379"])
def test_what_is_no_address_of_a_head_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: Path)

    assert f"found {address!r}, must be 'here', or HOST:PORT" in refusal(address)
