"""Bytes from client to server of one `PUT update` over plain HTTP, as a recorder between the two sees them.

Floor: the tensor's bytes alone. FedLens: request line, headers, update header, blob header, padding and tensors.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bench import models, trivial_client
from bench.row import Row, Sample, against_target
from bench.server_process import serving
from fedlens_proto import blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import blob_pb2

CODECS = {"f32": (blob_pb2.DTYPE_FLOAT32, 4), "f16": (blob_pb2.DTYPE_FLOAT16, 2)}
ELEMENTS = 512 * 10 + 10
MOST_BYTES = 700


class Recorder:
    """Passes TCP connections on to a server and keeps what goes each way."""

    def __init__(self, url: str) -> None:
        """`url` is the server's."""
        address = urlsplit(url)
        self._host, self._port = address.hostname, address.port
        self.sent: list[bytearray] = []
        self.received: list[bytearray] = []
        self._ended: list[asyncio.Event] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Give the address to connect to; ends when every connection has ended."""
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            yield f"http://{host}:{port}"
            for ended in self._ended:
                await ended.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on, both ways, until both sides have ended."""
        sent, received, ended = bytearray(), bytearray(), asyncio.Event()
        self.sent.append(sent)
        self.received.append(received)
        self._ended.append(ended)
        onward_reader, onward_writer = await asyncio.open_connection(self._host, self._port)
        ways = _pass_on(reader, onward_writer, sent), _pass_on(onward_reader, writer, received)
        await asyncio.gather(*ways, return_exceptions=True)
        ended.set()

    def bytes_of_put(self) -> int:
        """Length of the one PUT request, which was the last on its connection."""
        (record,) = [record for record in self.sent if b"PUT /v1/tasks/" in record]
        return len(record) - record.index(b"PUT /v1/tasks/")


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
    try:
        while chunk := await reader.read(1 << 16):
            record += chunk
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


def measure(folder: Path) -> Iterator[Row]:
    """One row for each codec."""
    bundle = models.inert_bundle(models.LINEAR_HEAD, folder / "bundle")
    for codec in CODECS:
        yield _measure(codec, bundle, folder / codec)


def _measure(codec: str, bundle: Bundle, folder: Path) -> Row:
    dtype, width = CODECS[codec]
    upload = blob.encode(models.tensors(models.LINEAR_HEAD, seed=2), floats=dtype)
    with serving(folder / "server") as server:
        server.create_task(bundle, {"rounds": 1, "population": 1, "codec": codec})
        sent = asyncio.run(record(server.url, server.trainer_token, upload, folder))
    payload = ELEMENTS * width
    return against_target(
        f"client to server, one plain-HTTP PUT update, linear head 512x10, {codec}",
        Sample((payload,)),
        Sample((sent,)),
        MOST_BYTES,
        "tensor bytes",
        unit="bytes",
        digits=0,
        judged=sent - payload,
        judged_text=f"payload + {sent - payload}",
        target_text=f"payload + {MOST_BYTES}",
    )


async def record(url: str, token: str, upload: bytes, folder: Path) -> int:
    """Take part in one round with this upload; how many bytes its PUT request has."""
    recorder = Recorder(url)
    async with recorder.listening() as between:
        cache = trivial_client.DownloadOnce(folder)
        await trivial_client.take_part(between, token, 0, cache, lambda *_: upload, limit=1)
    return recorder.bytes_of_put()
