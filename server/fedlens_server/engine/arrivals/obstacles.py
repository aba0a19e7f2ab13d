"""What keeps a client from a place in a task, however many are free, and so who counts as present there."""

from fedlens_proto.v1 import admin_pb2, check_in_pb2
from fedlens_server.engine.arrivals import participation
from fedlens_server.engine.cohorts.members import Round
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation

_LASTING = (check_in_pb2.WAIT_REASON_NOT_ELIGIBLE, check_in_pb2.WAIT_REASON_SITS_OUT)
Request = check_in_pb2.CheckInRequest


def obstacle(
    federation: Federation, task: Task, current: Round | None, client: bytes, request: Request
) -> check_in_pb2.WaitReason | None:
    """Why a client cannot get a place in a round, however many are free; None: it can.

    It is judged by what `participation.past` knows.
    """
    if not_eligible(task, request):
        return check_in_pb2.WAIT_REASON_NOT_ELIGIBLE
    if federation.clock.now() < participation.past(task, client).sits_out_until:
        return check_in_pb2.WAIT_REASON_SITS_OUT
    if current is not None and client in current.sitting_out:
        return check_in_pb2.WAIT_REASON_PHASE
    if task.paused:
        return check_in_pb2.WAIT_REASON_PAUSED
    if current is None:
        return check_in_pb2.WAIT_REASON_NEXT_ROUND
    member = current.members.get(client)
    if member is not None and member.state != admin_pb2.MEMBER_STATE_PENDING:
        return check_in_pb2.WAIT_REASON_NEXT_ROUND
    return None


def note_present(federation: Federation, task: Task, client: bytes, request: Request) -> None:
    """Count a client that asks as present in a task, or no longer if it is to get no place for a long time."""
    if (
        participation.left_places(task, client)
        or task.is_over_for(client)
        or obstacle(federation, task, None, client, request) in _LASTING
    ):
        task.present.forget(client)
    else:
        task.present.saw(client, federation.clock.elapsed())


def not_eligible(task: Task, request: Request) -> str:
    """What a client lacks to get a place in a task; empty: nothing."""
    least = task.settings.eligible
    if request.num_examples < least.num_examples:
        return (
            f"{request.num_examples} train photos to offer; task {task.name!r} takes clients with {least.num_examples}"
        )
    if request.client_version < least.client_version:
        return f"version {request.client_version} of the app; task {task.name!r} needs {least.client_version}"
    return ""
