"""A transport with planned faults, which tests clients and server without hooks inside them."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

import numpy as np

from fedlens_edge_client.client.transport import Blobs, Transport
from fedlens_edge_client.emulation.faults import FaultKind, FaultPlan
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_edge_client.errors import BadResponse
from fedlens_proto import wire
from fedlens_proto.blob import Layout
from fedlens_proto.v1 import blob_pb2, check_in_pb2, update_pb2

_NAN = {
    blob_pb2.DTYPE_FLOAT32: np.array(np.nan, "<f4").tobytes(),
    blob_pb2.DTYPE_FLOAT16: np.array(np.nan, "<f2").tobytes(),
    blob_pb2.DTYPE_INT8: np.array(np.nan, "<f4").tobytes(),  # a scale
}


class FaultyTransport(TransportWrapper):
    """The `Transport` of one emulated client with the faults of its plan.

    A client that vanishes in a round never sees its assignment; its check-in says to wait until the round is over.
    """

    def __init__(
        self,
        inner: Transport,
        plan: FaultPlan,
        index: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Wrap a transport.

        Args:
            inner: Makes the calls; closed with this transport.
            plan: Faults of all clients.
            index: The client's index in the plan.
            sleep: Waits for seconds of the server's time.
        """
        super().__init__(inner)
        self._plan = plan
        self._index = index
        self._sleep = sleep

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """As the inner transport, except for rounds in which this client vanishes."""
        response = await self._inner.check_in(request)
        if response.WhichOneof("result") != "assignment":
            return response
        fault = self._plan.of(self._index, response.assignment.round)
        if fault is None or fault.kind is not FaultKind.VANISH:
            return response
        wait = check_in_pb2.Wait(
            retry_after_ms=max(response.assignment.time_left_ms, 1), reason=check_in_pb2.WAIT_REASON_NEXT_ROUND
        )
        return check_in_pb2.CheckInResponse(wait=wait)

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        """As the inner transport, with this round's fault.

        Raises:
            BadResponse: The second receipt of an update sent twice differs from the first.
        """
        fault = self._plan.of(self._index, round_number)
        match fault.kind if fault else None:
            case FaultKind.DELAY if fault:
                await self._sleep(fault.seconds)
            case FaultKind.NAN if blobs:
                header, blobs = await asyncio.to_thread(with_nan, header, blobs)
            case FaultKind.CORRUPT if blobs:
                blobs = [await asyncio.to_thread(with_flipped_byte, blobs[0]), *blobs[1:]]
            case FaultKind.DUPLICATE | FaultKind.LOSS if fault:
                first = await self._inner.put_update(task, round_number, header, blobs)
                if fault.seconds:
                    await self._sleep(fault.seconds)
                second = await self._inner.put_update(task, round_number, header, blobs)
                if first != second:
                    raise BadResponse("an update sent twice got two different receipts")
                return second
        return await self._inner.put_update(task, round_number, header, blobs)


def with_nan(header: bytes, blobs: Blobs) -> tuple[bytes, Blobs]:
    """The update with a NaN as the first element, or scale, of the last blob's first float tensor, with the new digest.

    Args:
        header: Result of `wire.frame_update`.
        blobs: At least one; the last has a float tensor. Tables come after weights.
    """
    raw, layout = _read(blobs[-1])
    start, nan = next(
        (offset, _NAN[spec.dtype])
        for spec, offset in zip(layout.specs, layout.offsets, strict=True)
        if spec.dtype in _NAN
    )
    raw[start : start + len(nan)] = nan
    message = wire.decode(update_pb2.UpdateHeader, header[wire.LENGTH.size :])
    message.uploads[-1].sha256 = sha256(raw).digest()
    return wire.frame_update(message), [*blobs[:-1], bytes(raw)]


def with_flipped_byte(blob: bytes | Path) -> bytes:
    """The blob with the last bit of its first element flipped: still finite, but with another digest."""
    raw, layout = _read(blob)
    raw[layout.offsets[0]] ^= 1
    return bytes(raw)


def _read(blob: bytes | Path) -> tuple[bytearray, Layout]:
    raw = blob.read_bytes() if isinstance(blob, Path) else blob
    layout = Layout.parse(raw)
    assert layout is not None, "clients upload whole blobs"
    return bytearray(raw), layout
