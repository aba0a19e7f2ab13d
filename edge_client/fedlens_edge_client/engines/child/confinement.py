"""The confinement of the child: what the kernel lets the process do once it is ready for a stranger's program.

Everything that is not on the list ends the process: sockets, other programs, threads, debugging, signals to others.
What libraries do in passing, such as looking for a file, fails with EACCES instead, so that they go on without.
Allowed is what arithmetic needs, and reading, writing and closing the descriptors that the process has.

Source of the calls' meanings: the manual pages of Linux, section 2, https://man7.org/linux/man-pages/dir_section_2.html
"""

import ctypes
import errno
import fcntl
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from fedlens_edge_client.engines import RuntimeMissing

MEMORY_BYTES = 4 << 30
"""Memory that programs may take at least; half of the machine's, if that is more."""
MAX_OUTPUT_BYTES = 1 << 16
_DESCRIPTORS = 64
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4

_ALLOWED = (
    # Memory; a convolution writes machine code for its shapes, so that memory may become executable.
    *("brk", "mmap", "munmap", "mremap", "mprotect", "madvise"),
    # Locks and time.
    *("futex", "sched_yield", "sched_getaffinity", "getcpu", "membarrier", "rseq"),
    *("clock_gettime", "clock_getres", "gettimeofday", "time", "nanosleep", "clock_nanosleep"),
    # The descriptors that it has; there is no call to get another one but over the link.
    *("read", "readv", "pread64", "write", "writev", "close", "lseek", "poll", "ppoll"),
    *("recvfrom", "recvmsg", "sendto", "sendmsg"),
    # Itself.
    *("getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "uname", "sysinfo", "getrusage"),
    *("getrandom", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "exit", "exit_group"),
)
_DENIED = (
    *("open", "openat", "openat2", "creat", "access", "faccessat", "faccessat2", "readlink", "readlinkat", "getcwd"),
    *("stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs", "getdents64", "chdir"),
    *("mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "ftruncate"),
    *("ioctl", "prlimit64", "getrlimit", "setrlimit", "sched_setaffinity", "mbind", "get_mempolicy"),
)


def die_with(parent: int) -> None:
    """End this process when the thread that started it ends; at once if it has already."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise SystemExit


def confine() -> None:
    """Limit this process for the rest of its life; on Linux, take all but a few system calls from it.

    Raises:
        RuntimeMissing: The library or the kernel's part of it is missing.
    """
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: MAX_OUTPUT_BYTES,
        resource.RLIMIT_NOFILE: _DESCRIPTORS,
    }
    if sys.platform.startswith("linux"):
        limits[resource.RLIMIT_AS] = _address_space() + max(MEMORY_BYTES, _machine_bytes() // 2)
        with suppress(OSError):
            # If memory runs out all the same, this process is the one to end.
            Path("/proc/self/oom_score_adj").write_text("1000")
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_DUMPABLE, 0)
        _filter()


def library() -> ModuleType:
    """The library that hands the list to the kernel.

    Raises:
        RuntimeMissing: It is not installed.
    """
    try:
        import pyseccomp  # type: ignore[import-untyped]  # it has no types
    except (ImportError, RuntimeError) as error:
        raise RuntimeMissing(
            f"programs cannot be confined on this machine: {error}; install pyseccomp and libseccomp (Debian: "
            "libseccomp2), or run programs in process (--in-process), where nothing confines them"
        ) from error
    found: ModuleType = pyseccomp
    return found


def _filter() -> None:
    """Load the list into the kernel; the library also sets no_new_privs."""
    seccomp = library()
    refuse, allow = seccomp.ERRNO(errno.EACCES), seccomp.ALLOW
    try:
        calls = seccomp.SyscallFilter(seccomp.KILL_PROCESS)
        for name in _ALLOWED:
            calls.add_rule(allow, name)
        for name in _DENIED:
            calls.add_rule(refuse, name)
        # `abort`, after an error in a library, signals to the process itself.
        calls.add_rule(allow, "tgkill", seccomp.Arg(0, seccomp.EQ, os.getpid()))
        # Mapping a file duplicates its descriptor. Others could have signals sent to any process.
        calls.add_rule(allow, "fcntl", seccomp.Arg(1, seccomp.EQ, fcntl.F_DUPFD_CLOEXEC))
        calls.add_rule(refuse, "fcntl", seccomp.Arg(1, seccomp.NE, fcntl.F_DUPFD_CLOEXEC))
        calls.load()
    except (OSError, ValueError) as error:
        raise RuntimeMissing(f"programs cannot be confined on this machine: seccomp: {error}") from error


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0) != 0:
        raise RuntimeMissing(f"programs cannot be confined on this machine: prctl: {os.strerror(ctypes.get_errno())}")


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
