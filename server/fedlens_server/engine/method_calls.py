"""Calling a method: what it is given beside its arguments, and what becomes of its mistakes."""

import logging
from collections.abc import Callable
from typing import TypeVar

from fedlens_proto import keyed_hash
from fedlens_server.engine.inference import Inference
from fedlens_server.engine.view import Federation, Task
from fedlens_server.errors import StorageFull
from fedlens_server.methods import NothingToAggregate, Tools

log = logging.getLogger(__name__)
T = TypeVar("T")


class MethodFailed(Exception):
    """A method raised what it must not; the text is for the operator."""


def of_method(call: Callable[[], T]) -> T:
    """What a method's function gives.

    Raises:
        NothingToAggregate, StorageFull: As the method or the store under it says.
        MethodFailed: Anything else; the traceback is in the log.
    """
    try:
        return call()
    except (NothingToAggregate, StorageFull):
        raise
    except Exception as error:
        log.exception("a method failed")
        raise MethodFailed(f"the method failed: {type(error).__name__}: {error}") from error


def tools(federation: Federation, task: Task, number: int, population: tuple[bytes, ...]) -> Tools:
    """What the method may use in a round; 0 is before the first."""
    tensors, first, concatenated = federation.store.tensors, task.plan.ordinary[0], task.plan.concatenated
    return Tools(
        generator=keyed_hash.server_generator(task.seed, number),
        population=population,
        initial=tensors(first.initial),
        initial_concatenated=tensors(concatenated[0].initial) if concatenated else None,
        infer=Inference(first, federation.store),
        photo_shape=(3, first.preprocessing.height, first.preprocessing.width),
    )
