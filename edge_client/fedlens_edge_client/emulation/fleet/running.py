"""Running a fleet to its end: until all tasks have ended, somebody stops it, or a part of it dies."""

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

    A client that fails ends alone once rounds are under way. Before that it ends the fleet, for the others would
    wait for it in vain.

    Args:
        config: What to run.
        on_message: Called with everything that the workers say.
        should_stop: Asked several times a second; after True, every client ends after the arrow in which it is.
            What it raises ends the fleet at once.
        on_started: Called with the process ids of the workers.

    Raises:
        Untrusted: The server's address, or the file of its CA, is none.
        WorkerDied: A worker process ended without having said so; the others have been killed.
    """
    # No client could use what is refused here; each would say so, in its own process.
    HttpTransport(config.server, config.secret(0), ca=config.ca)
    status = FleetStatus(config.name)
    stopping = False
    with FleetProcesses(config) as processes:
        on_started(processes.pids)
        while processes.running:
            for message in processes.messages(LOOK_EVERY_S):
                status.hear(message)
                on_message(message, status)
            if not stopping and (should_stop() or (status.failures and not status.rounds)):
                stopping = True
                processes.stop()
    return status
