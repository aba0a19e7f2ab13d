"""The pause before a client that found no place asks again: twice as many come a round as places are given."""

from fedlens_server.engine.arrivals import participation
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation

SHORTEST_S, LONGEST_S = 1.0, 3600.0
FIRST_LENGTH_S = 60.0


def pause_s(federation: Federation, task: Task) -> float:
    """The pause, in seconds: uniform(0.5, 1.5) x present x length of a round / (2 x places).

    The length is `Task.round_s`. Before a first round has ended, it is taken to be a minute.
    """
    length = FIRST_LENGTH_S if task.round_s is None else task.round_s
    present = participation.present(federation, task)
    pause = federation.generator.uniform(0.5, 1.5) * present * length / (2 * max(1, task.places))
    return min(max(pause, SHORTEST_S), LONGEST_S)
