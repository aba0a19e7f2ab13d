"""A client without a person beside it, as in a command or a fleet: it ends if no photo can ever be used."""

from fedlens_edge_client.client.client import EdgeClient, Outcome
from fedlens_edge_client.client.events import RoundFailed, TasksFinished
from fedlens_edge_client.errors import AlbumError


async def take_part(client: EdgeClient, *, once: bool = False) -> Outcome:
    """Take part in round after round until every task has ended; with `once`, in one round.

    Returns:
        The outcome of the last round.

    Raises:
        AlbumError: No photo is of a class of the bundle, so every round would fail.
        EdgeClientError: As `EdgeClient.run`.
    """
    while True:
        outcome = await client.run_once()
        if isinstance(outcome, RoundFailed) and outcome.advice:
            raise AlbumError(outcome.advice)
        if once or isinstance(outcome, TasksFinished):
            return outcome
