"""Clients of the real protocol that do no work: each downloads, then uploads a blob made beforehand."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path

from bench.server_process import Server
from fedlens_edge_client.client.http_transport import HttpTransport
from fedlens_proto import keyed_hash, plans, wire
from fedlens_proto.v1 import assignment_pb2, check_in_pb2, enrolment_pb2, update_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

HOLD_MS = 25_000
ABLE = enrolment_pb2.Capabilities(
    formats=[pb.PROGRAM_FORMAT_PT2],
    bundle_classes=[pb.BUNDLE_CLASS_WHOLE_MODEL, pb.BUNDLE_CLASS_FROZEN_BACKBONE],
    plan_format=plans.FORMAT,
)
Upload = Callable[[int, int], bytes | Path]  # client, round


class DownloadOnce:
    """A cache that clients share: each blob is fetched by the first who asks for it."""

    def __init__(self, folder: Path) -> None:
        """Files go into `folder`."""
        self._folder = folder
        self._fetched: dict[bytes, asyncio.Task[None]] = {}

    async def get(self, transport: HttpTransport, blob_set: assignment_pb2.BlobSet) -> None:
        """Return when the blob is here."""
        digest = blob_set.sha256
        if digest not in self._fetched:
            target = self._folder / digest.hex()
            self._fetched[digest] = asyncio.ensure_future(transport.fetch(digest, target, blob_set.size))
        await self._fetched[digest]


class DownloadEach:
    """No cache: every client fetches, and checks, every blob."""

    def __init__(self, folder: Path) -> None:
        """Files go into `folder` and are deleted at once."""
        self._folder = folder
        self._count = 0

    async def get(self, transport: HttpTransport, blob_set: assignment_pb2.BlobSet) -> None:
        """Return when the blob has been here and had the right digest."""
        self._count += 1
        target = self._folder / f"{self._count}"
        await transport.fetch(blob_set.sha256, target, blob_set.size)
        found = await asyncio.to_thread(_digest, target)
        target.unlink()
        if found != blob_set.sha256:
            raise RuntimeError("a downloaded blob is damaged")


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return file_digest(file, "sha256").digest()


@lru_cache(maxsize=256)
def known(blob: Path) -> tuple[bytes, int]:
    """Digest and size of a file, computed once: a client knows them since it wrote its update."""
    return _digest(blob), blob.stat().st_size


async def take_part(
    server: str, token: str, index: int, cache: DownloadOnce | DownloadEach, upload: Upload, limit: int | None = None
) -> None:
    """Enrol client `index` and take part until all is finished, or in `limit` rounds."""
    transport = HttpTransport(server, keyed_hash.fleet_secret(b"bench", 0, index))
    try:
        await transport.enrol(token, ABLE)
        done = 0
        while limit is None or done < limit:
            request = check_in_pb2.CheckInRequest(protocol=wire.PROTOCOL, num_examples=1, hold_ms=HOLD_MS)
            answer = await transport.check_in(request)
            kind = answer.WhichOneof("result")
            if kind == "finished":
                return
            if kind == "wait":
                await asyncio.sleep(answer.wait.retry_after_ms / 1000)
                continue
            await _report(transport, answer.assignment, cache, upload(index, answer.assignment.round))
            done += 1
    finally:
        await transport.close()


async def download_each(server: Server, clients: int, blobs: list[Path], folder: Path, upload: Upload) -> None:
    """Have clients take part to the end that fetch every blob; `blobs` are those that they upload."""
    for blob in blobs:
        known(blob)
    downloads = folder / "downloads"
    downloads.mkdir(exist_ok=True)
    cache = DownloadEach(downloads)
    await asyncio.gather(*(take_part(server.url, server.trainer_token, i, cache, upload) for i in range(clients)))


async def _report(
    transport: HttpTransport,
    assignment: assignment_pb2.Assignment,
    cache: DownloadOnce | DownloadEach,
    blob: bytes | Path,
) -> None:
    for blob_set in assignment.sets:
        await cache.get(transport, blob_set)
    plan = assignment.local_plan
    digest, size = (sha256(blob).digest(), len(blob)) if isinstance(blob, bytes) else known(blob)
    header = update_pb2.UpdateHeader(
        protocol=wire.PROTOCOL,
        phase=assignment.phase,
        bundle=assignment.bundle,
        num_examples=1,
        evaluations=[
            update_pb2.EvaluationSums(label=each.label, count=1, correct=1, loss=0.5) for each in plan.evaluations
        ],
        uploads=[update_pb2.UploadedBlob(name=each.name, sha256=digest, size=size) for each in plan.uploads],
    )
    await transport.put_update(assignment.task, assignment.round, wire.frame_update(header), [blob])
