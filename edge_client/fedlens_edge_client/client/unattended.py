"""A client whose classes nobody is about to name otherwise: that of a command, or of a fleet."""

from fedlens_edge_client.client.client import EdgeClient, Outcome
from fedlens_edge_client.client.events import RoundFailed, TasksFinished
from fedlens_edge_client.errors import AlbumError


async def take_part(client: EdgeClient, *, once: bool = False) -> Outcome:
    """Take part in round after round until every task has ended; with `once` in one.

    Returns:
        How the last round ended.

    Raises:
        AlbumError: No photo is of a class of the bundle: the next round would end like this one.
        EdgeClientError: As `EdgeClient.run`.
    """
    while True:
        outcome = await client.run_once()
        if isinstance(outcome, RoundFailed) and outcome.advice:
            raise AlbumError(outcome.advice)
        if once or isinstance(outcome, TasksFinished):
            return outcome
