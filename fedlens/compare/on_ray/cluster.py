"""A Ray cluster: one that is there, or one that is started here for a study alone."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from fedlens.errors import FedlensError

HERE = "here"
_ANSWER_TIMEOUT_S = 5.0
_GIB = 1 << 30
# With it a client of HTTP/2, and so of gRPC, begins; a server's first frame is of this type.
_GREETING, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 4
# Read when Ray is imported. Without them, Ray's workers have the lowest priority.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# Despite its name this is heeded everywhere: at 0, Ray knows itself by the address of this machine's loopback.
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}


class RayUnusable(FedlensError):
    """Runs cannot be carried out on Ray; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """The cluster, and what each run needs of it.

    Attributes:
        address: `HOST:PORT` of the cluster's head, or `HERE`: one is started, with a CPU for each worker.
        cpus: CPUs of a run.
        memory_gib: Memory of a run in GiB; None: none is asked for.
        gpus: GPUs of a run.
    """

    address: str
    cpus: int = 1
    memory_gib: float | None = None
    gpus: int = 0

    @property
    def needs(self) -> dict[str, float]:
        """The needs of a run, in Ray's terms."""
        memory = {} if self.memory_gib is None else {"memory": self.memory_gib * _GIB}
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, **memory}


def the_ray() -> Any:
    """The package `ray`, without its types, which refuse most of its options."""
    return import_module("ray")


def alone() -> dict[str, str]:
    """Variables of a cluster on this machine alone, with a token that nobody else knows, and that Ray keeps nowhere."""
    return _QUIET | _ALONE | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def connected(config: RayConfig, workers: int) -> Iterator[Path]:
    """Connect to a cluster, or start one on this machine; the value is the folder for files of nodes.

    Args:
        config: The address and needs.
        workers: CPUs of a cluster that is started here.

    Raises:
        RayUnusable: Ray is not installed, does not answer, is another version, or no node has what a run needs.
    """
    if find_spec("ray") is None:
        raise RayUnusable("--ray: Ray is not installed; install it with: pip install 'fedlens[ray]'")
    is_here = config.address == HERE
    if not is_here:
        _check_answer(config.address)
    os.environ.update(_QUIET)
    if is_here:
        os.environ.update(alone())
    ray = the_ray()

    with ExitStack() as stack:
        settings: dict[str, Any] = {}
        address, folder = config.address, gettempdir()
        if is_here:
            address, folder = "local", stack.enter_context(TemporaryDirectory(prefix="fedlens-ray-"))
            settings = {"num_cpus": workers, "include_dashboard": False, "_temp_dir": folder}
        try:
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False, **settings)
            except (ConnectionError, ValueError, OSError, RuntimeError, ray.exceptions.RayError) as error:
                where = "Ray cannot be started here" if is_here else f"Ray at {address} cannot be used"
                raise RayUnusable(f"--ray: {where}: {in_a_line(error)}") from error
            if (found := missing(config)) is not None:
                raise RayUnusable(f"{found}; ask for less, or add a node")
            yield Path(folder)
        finally:
            ray.shutdown()


def clients_at_a_time(config: RayConfig, runs: int) -> int:
    """How many clients of each run can be trained side by side; 1 with fewer than twice the CPUs that runs need.

    On GPUs a run trains its clients itself: sending their photos anew each round takes longer than training on them.
    """
    cpus = the_ray().cluster_resources().get("CPU", 0)
    return 1 if config.gpus else max(1, int(cpus // (config.cpus * runs)))


def missing(config: RayConfig) -> str | None:
    """What a run needs and no node has, in words; None: a node has it."""
    nodes = [node["Resources"] for node in the_ray().nodes() if node["Alive"]]
    for name, wanted, option, unit in (
        ("CPU", config.cpus, "--run-cpus", ""),
        ("memory", (config.memory_gib or 0) * _GIB, "--run-memory", " bytes"),
        ("GPU", config.gpus, "--device cuda", ""),
    ):
        most = max((node.get(name, 0) for node in nodes), default=0)
        if wanted > most:
            return f"{option}: a run needs {wanted:g} {name}{unit}, but the largest node has {most:g}"
    return None


def _check_answer(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535 or "/" in host:
        raise RayUnusable(
            f"--ray: found {address!r}, must be {HERE!r}, or HOST:PORT of a cluster's head, as `ray start --head` says"
        )
    # Ray itself would try for minutes.
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _ANSWER_TIMEOUT_S) as connection:
            connection.sendall(_GREETING)
            is_ray = connection.recv(9)[3:4] == bytes([_SETTINGS])
            found = "something else does"
    except OSError as error:
        is_ray, found = False, error.strerror or str(error)
    if not is_ray:
        raise RayUnusable(
            f"--ray: no Ray answers at {address}: {found}; start it with `ray start --head`, or give --ray {HERE}"
        )


def in_a_line(error: Exception) -> str:
    """The begin of Ray's errors, some of which are pages."""
    return " ".join(str(error).split())[:400] or type(error).__name__
