"""A client in a process of its own, to be killed; its arguments are URL STATE PHOTOS [no-training | dies-in-second]."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from fedlens_edge_client import EdgeClient, FolderAlbum
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.policy import EMULATED
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle
from tests.edge_client.fakes import TOKEN
from tests.edge_client.linear import LinearEngine


def never(bundle: Bundle) -> Engine:
    """An engine for a process that has nothing to train."""
    raise SystemExit(f"bundle {bundle.id.hex()} is not expected to be loaded")


class DiesInSecond(LinearEngine):
    """An engine whose process is killed when the second training of a plan begins."""

    def train(self, *arguments: Any, **others: Any) -> dict[str, Array]:
        if self.weights:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(*arguments, **others)


ENGINES = {"no-training": never, "dies-in-second": DiesInSecond}


async def main() -> None:
    """Take part in one round."""
    url, state, photos, *rest = sys.argv[1:]
    factory = ENGINES[rest[0]] if rest else LinearEngine
    album = FolderAlbum(Path(photos))
    given = {"publishers": TRUST_SERVER, "policy": EMULATED, "engine_factory": factory}
    async with EdgeClient(url, Path(state), album, enrolment_token=TOKEN, **given) as client:
        await client.run_once()


if __name__ == "__main__":
    asyncio.run(main())
