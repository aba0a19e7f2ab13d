"""What `Link` does to the connections through it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from tests.server.elsewhere import Link, end_accepting


@pytest.fixture
def link() -> Iterator[Link]:
    """A link to a server that answers with what it is sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_echo, args=(listener,), daemon=True)
    thread.start()
    with closing(Link(listener.getsockname()[1])) as made:
        yield made
    end_accepting(listener, thread)


def _echo(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        while raw := connection.recv(100):
            connection.sendall(raw)


def _asked(connection: socket.socket, raw: bytes) -> bytes:
    connection.sendall(raw)
    return connection.recv(100)


def test_only_the_connection_that_has_sent_what_is_asked_for_loses_an_answer(link: Link) -> None:
    """A server renews its lead meanwhile, by a connection that was open before."""
    other, mine = (socket.create_connection(("127.0.0.1", link.port), timeout=10) for _ in range(2))
    with other, mine:
        before = [_asked(each, b"COMMIT") for each in (other, mine)]
        link.cut_after(b"COMMIT", of=b"update")
        during = [_asked(other, b"COMMIT"), _asked(mine, b"update")]
        was_swallowed = link.swallowed.is_set()
        lost = _asked(mine, b"COMMIT")

        assert link.swallowed.wait(10)
    assert before == [b"COMMIT"] * 2
    assert during == [b"COMMIT", b"update"]
    assert (was_swallowed, lost) == (False, b"")


def test_a_link_that_has_ended_accepts_nothing_more() -> None:
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as server:
        Link(server.getsockname()[1]).close()

    assert set(threading.enumerate()) <= before
