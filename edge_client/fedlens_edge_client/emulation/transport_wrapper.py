"""A transport around another one."""

from fedlens_edge_client.client.transport import Blobs, Transport
from fedlens_proto.v1 import check_in_pb2, update_pb2


class TransportWrapper:
    """A `Transport` that makes all calls of an inner one; subclasses change check-ins or updates."""

    def __init__(self, inner: Transport) -> None:
        """`inner` is closed with this transport."""
        self._inner = inner
        self.enrol = inner.enrol
        self.fetch = inner.fetch
        self.put_evaluation = inner.put_evaluation
        self.report_failure = inner.report_failure
        self.forget = inner.forget
        self.close = inner.close

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """As the inner transport."""
        return await self._inner.check_in(request)

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        """As the inner transport."""
        return await self._inner.put_update(task, round_number, header, blobs)
