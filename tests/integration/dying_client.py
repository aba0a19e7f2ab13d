"""A client that kills itself around its first upload: `python -m tests.integration.dying_client FOLDER PHOTOS WHEN`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from fedlens_edge_client.client.client import EdgeClient
from fedlens_edge_client.client.http_transport import HttpTransport
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.storage.folder_album import FolderAlbum
from fedlens_proto.v1 import update_pb2
from tests.integration import federation


class Suicidal(HttpTransport):
    """Dies before or after the server has its update; in both cases before the receipt is noted."""

    def __init__(self, server: str, ca: Path, when: str) -> None:
        super().__init__(server, federation.secret(0), ca=ca)
        self._when = when

    async def put_update(
        self, task: int, round_number: int, header: bytes, blob: bytes | Path | None
    ) -> update_pb2.Receipt:
        if self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        receipt = await super().put_update(task, round_number, header, blob)
        if self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return receipt


async def main(server: str, folder: Path, photos: Path, when: str) -> None:
    ca, token = folder / "server/ca.pem", (folder / "server/trainer.token").read_text().strip()
    album = federation.ShareAlbum(FolderAlbum(photos), 0, 2)
    transport = Suicidal(server, ca, when)
    async with EdgeClient(
        server,
        folder / "client-0",
        album,
        enrolment_token=token,
        secret=federation.secret(0),
        transport=transport,
        engine_factory=TorchEngine,
    ) as member:
        await member.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]))
