"""Run a fleet until all tasks have ended, it is stopped, or a process dies."""

from collections.abc import Callable

from fedlens_edge_client.client.http_transport import HttpTransport
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import Message
from fedlens_edge_client.emulation.fleet.processes import FleetProcesses
from fedlens_edge_client.emulation.fleet.status import FleetStatus

LOOK_EVERY_S = 0.2


def run_fleet(
    config: FleetConfig,
    on_message: Callable[[Message, FleetStatus], None] = lambda message, status: None,
    should_stop: Callable[[], bool] = lambda: False,
    on_started: Callable[[list[int]], None] = lambda pids: None,
) -> FleetStatus:
    """Run a fleet in worker processes.

    A client that fails ends alone, unless others would wait for it in vain; see `FleetStatus.waits_in_vain`.

    Args:
        config: The fleet.
        on_message: Called with every message of the workers.
        should_stop: Called several times a second; after True, every client ends after its current step. An exception
            ends the fleet at once.
        on_started: Called with the process ids of the workers.

    Raises:
        Untrusted: The server's address or the file of its CA cannot be used.
        WorkerDied: A worker process ended unexpectedly; the others have been killed.
    """
    # A wrong address would fail in every client's process; fail once instead.
    HttpTransport(config.server, config.secret(0), ca=config.ca)
    status = FleetStatus(config.name)
    stopping = False
    with FleetProcesses(config) as processes:
        on_started(processes.pids)
        while processes.running:
            for message in processes.messages(LOOK_EVERY_S):
                status.count(message)
                on_message(message, status)
            if not stopping and (should_stop() or status.waits_in_vain):
                stopping = True
                processes.stop()
    return status
