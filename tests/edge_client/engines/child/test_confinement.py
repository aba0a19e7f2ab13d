"""What a hostile program can do in a child: each attack runs in one, after it has confined itself."""

import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from fedlens_edge_client.engines import BundleUnusable, ProgramCrashed, RuntimeMissing
from fedlens_edge_client.engines.child import known
from fedlens_edge_client.engines.child.child import LIMIT_S, Child
from fedlens_edge_client.engines.child.engine import ChildProgram
from fedlens_edge_client.engines.child.shared import shared_file
from fedlens_edge_client.engines.choice import EngineName, check_installed
from fedlens_proto.v1 import manifest_pb2 as pb

HOSTILE = "tests.edge_client.engines.child.hostile_process"
# Its libraries are loaded faster than those of `.pt2`; the confinement is the same.
FORMAT = pb.PROGRAM_FORMAT_PTE


def hostile(limit_s: float = LIMIT_S) -> Child:
    return Child(FORMAT, process=HOSTILE, limit_s=limit_s)


def run(child: Child, source: str) -> None:
    """Run Python in a child."""
    message, _ = known.program(FORMAT)
    program = ChildProgram(child, message, f"#\n{source}\n".encode(), FORMAT)
    for _ in program.runs([torch.zeros(2, 2), torch.zeros(2, 2)], [None]):
        pass


def end_of(source: str, limit_s: float = LIMIT_S) -> str:
    """The error that the client sees for code that ends the child; the child is gone."""
    child = hostile(limit_s)
    with pytest.raises(ProgramCrashed) as error:
        run(child, source)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    return str(error.value)


def ends_of(sources: Iterable[str]) -> list[str]:
    """The error of `end_of` for each."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(end_of, sources))


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = hostile()
    yield child
    child.end()


FORBIDDEN = {
    "a socket": "import socket; socket.socket()",
    "a local socket": "import socket; socket.socketpair()",
    "connect": "LIBRARY.connect(LINK, 0, 0)",
    "fork": "os.fork()",
    "thread": "import _thread; _thread.start_new_thread(print, ())",
    "exec": "os.execv('/bin/true', ['true'])",
    "trace its parent": "LIBRARY.ptrace(16, os.getppid(), 0, 0)",
    "read its parent's memory": "LIBRARY.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0)",
    "signal its parent": "os.kill(os.getppid(), 0)",
    "signal a thread of its parent": "LIBRARY.tgkill(os.getppid(), os.getppid(), 0)",
    "io_uring": "LIBRARY.syscall(425, 8, 0)",
    "another user": "os.setuid(0)",
    "leave its name space": "LIBRARY.unshare(0x10000000)",
}


@pytest.mark.slow
def test_a_program_that_asks_for_network_processes_or_threads_is_ended_by_the_kernel() -> None:
    ends = dict(zip(FORBIDDEN, ends_of(FORBIDDEN.values()), strict=True))

    assert {name: end for name, end in ends.items() if "signal SIGSYS" not in end} == {}


DENIED = {
    "read a file": "open('/etc/hostname')",
    "write a file": "open('/dev/shm/fedlens-child', 'w')",
    "list a folder": "os.listdir('/')",
    "look for a file": "os.stat('/etc/hostname')",
    "remove a file": "os.unlink('/dev/shm/fedlens-child')",
    "read its parent's environment": "open(f'/proc/{os.getppid()}/environ')",
    "raise its limits": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (1, 1))",
    "have signals sent": "import fcntl; fcntl.fcntl(LINK, fcntl.F_SETOWN, os.getppid())",
    "shrink the memory that it shares": "os.ftruncate(LINK, 0)",
}


@pytest.mark.parametrize("attempt", DENIED)
def test_a_program_reaches_no_file_and_goes_on(child: Child, attempt: str) -> None:
    with pytest.raises(BundleUnusable, match="PermissionError"):
        run(child, DENIED[attempt])
    run(child, "")


@pytest.mark.slow
def test_a_child_has_nothing_of_the_clients_memory(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    # The client's secret is in its memory, and a token in its environment.
    secret, token, known_there = (secrets.token_hex(32).encode() for _ in range(3))
    monkeypatch.setenv("FEDLENS_ENROLMENT_TOKEN", token.decode())
    fresh = hostile()

    def search(needle: bytes, more: str = "") -> str:
        with pytest.raises(BundleUnusable) as error:
            run(fresh, f"{more}\ntell(found({needle[:32]!r}, {needle[32:]!r}))")
        return str(error.value)

    put_there = f"kept = bytes({list(known_there)})"
    assert [search(secret), search(token), search(known_there, put_there)] == ["False", "False", "True"]
    fresh.end()


@pytest.mark.slow
def test_a_child_inherits_no_descriptor_but_its_own(child: Child) -> None:
    # Standard streams, the link, and the two that the hostile process has opened for these tests.
    with Path(__file__).open() as theirs:
        os.set_inheritable(theirs.fileno(), True)
        fresh = hostile()
        fresh.wait_until_ready()
        inherited = {entry.name for entry in Path(f"/proc/{fresh.pid}/fd").iterdir()}
        fresh.end()

    assert len(inherited) == 6


def test_a_program_that_takes_too_much_memory_fails_and_does_no_harm(child: Child) -> None:
    with pytest.raises(BundleUnusable, match=r"memory|MemoryError"):
        run(child, "torch.ones(1 << 42)")
    with pytest.raises(BundleUnusable, match="more memory than it may"):
        run(child, "bytearray(1 << 42)")
    run(child, "")


ENDS = {
    "LIBRARY.memset(0, 0, 1)": "signal SIGSEGV: the program is damaged or hostile",
    "os.abort()": "signal SIGABRT",
    "os._exit(0)": "ended with status 0",
    "os._exit(3)": "ended with status 3",
}


@pytest.mark.slow
def test_a_crash_is_an_error_that_says_how_the_process_ended() -> None:
    assert [how for end, how in zip(ends_of(ENDS), ENDS.values(), strict=True) if how not in end] == []


@pytest.mark.slow
def test_a_program_that_does_not_end_is_ended() -> None:
    began = time.monotonic()

    assert "its process did not answer within 0.5 s" in end_of("while True: pass", limit_s=0.5)
    assert time.monotonic() - began < LIMIT_S


REPLIES = {
    "a status that is none": r"b'\x02\x00\x00'",
    "a failure without a text": r"b'\x00\x00\x00'",
    "a success with a text": r"b'\x01\x01\x00x'",
    "a text without end": r"b'\x00\xff\xff' + bytes(70000)",
}


@pytest.mark.slow
def test_a_reply_that_breaks_the_protocol_ends_the_child() -> None:
    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(lambda reply: end_of(f"os.write(LINK, {reply})"), REPLIES.values()))

    assert [end for end in ends if "its process does not keep to the protocol" not in end] == []


def test_a_text_of_a_child_is_short_and_harmless_to_a_terminal(child: Child) -> None:
    with pytest.raises(BundleUnusable) as error:
        run(child, r"tell('\x1b[2J' + 'x' * 100_000)")

    assert str(error.value).startswith("?[2Jxxx")
    assert len(str(error.value)) <= 2000


def test_what_a_child_writes_fills_no_disk(child: Child) -> None:
    with pytest.raises(BundleUnusable, match="File too large"):
        run(child, "while os.write(1, bytes(1000)): pass")


def test_nobody_can_change_the_size_of_shared_memory() -> None:
    descriptor = shared_file(4096)

    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)


def test_a_child_that_cannot_start_is_no_crash_and_says_why() -> None:
    fresh = Child(FORMAT, process="fedlens_edge_client.absent")
    fresh.on_lost = lambda: pytest.fail("no bundle has ended it")

    with pytest.raises(RuntimeMissing, match=r"ended with status 1 \(.*No module named fedlens_edge_client\.absent\)"):
        fresh.wait_until_ready()


def test_a_machine_that_cannot_confine_programs_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyseccomp", None)

    with pytest.raises(RuntimeMissing, match=r"install pyseccomp and libseccomp .* or run programs in process"):
        check_installed(EngineName.TORCH, in_process=False)
    check_installed(EngineName.TORCH)


@pytest.mark.slow
def test_a_child_ends_with_the_client() -> None:
    fresh = hostile()
    fresh.wait_until_ready()

    fresh._link.close()

    assert fresh._process.wait(10) == 0
    fresh.end()
