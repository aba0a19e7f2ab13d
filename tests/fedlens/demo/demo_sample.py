"""An answer of the admin API as a run of the demo gives it, for tests of the report."""

import numpy as np

from fedlens_proto.v1 import admin_pb2, update_pb2

CLIENTS = 20
IDS = [bytes([i]) * 32 for i in range(CLIENTS)]
NAMES = {client: f"client {i + 1}" for i, client in enumerate(IDS)}


def sums(label: str, correct: int, count: int) -> update_pb2.EvaluationSums:
    return update_pb2.EvaluationSums(label=label, count=count, correct=correct, loss=float(count - correct))


def sample_answer() -> admin_pb2.ShowTaskResponse:
    """Ten rounds of twenty clients: round 4 was abandoned, one update of round 6 quarantined."""
    random = np.random.default_rng(0)
    answer = admin_pb2.ShowTaskResponse()
    for number in range(1, 12):
        share = 0.95 - 0.8 * 0.65**number
        result = answer.rounds.add(
            round=number,
            state=admin_pb2.ROUND_STATE_COMMITTED,
            opened_at=1e9 + number,
            ended_at=1e9 + number + 2.2 / number + 0.8,
            bytes_sent=20 * 250_000 + (900_000 if number == 1 else 0),
        )
        if number == 4:
            result.state, result.reason = admin_pb2.ROUND_STATE_ABANDONED, "1 of at least 2 updates at the deadline"
            continue
        for client in IDS:
            member = result.members.add(client_id=client, state=admin_pb2.MEMBER_STATE_REPORTED)
            if number == 6 and client == IDS[3]:
                member.state = admin_pb2.MEMBER_STATE_QUARANTINED
                member.reason = "tensor 'fc.weight' holds a NaN or an infinity"
                continue
            before = int(100 * np.clip(share - 0.1 + random.normal(0, 0.03), 0, 1))
            member.num_examples = int(random.integers(80, 130))
            member.bytes_received = 247_400
            member.evaluations.append(sums("start", before, 100))
            member.evaluations.append(sums("trained", min(before + 7, 100), 100))
        committed = getattr(result, "global")
        committed.append(sums("global", int(share * 360), 360))
    return answer
