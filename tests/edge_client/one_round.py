"""A client in a process of its own, to be killed; its arguments are URL STATE PHOTOS [no-training]."""

import asyncio
import sys
from pathlib import Path

from fedlens_edge_client import EdgeClient, FolderAlbum
from fedlens_edge_client.engines import Engine
from fedlens_proto.manifest import Bundle
from tests.edge_client.fakes import TOKEN
from tests.edge_client.linear import LinearEngine


def never(bundle: Bundle) -> Engine:
    """An engine for a process that has nothing to train."""
    raise SystemExit(f"bundle {bundle.id.hex()} is not expected to be loaded")


async def main() -> None:
    """Take part in one round."""
    url, state, photos, *rest = sys.argv[1:]
    factory = never if rest else LinearEngine
    album = FolderAlbum(Path(photos))
    async with EdgeClient(url, Path(state), album, enrolment_token=TOKEN, engine_factory=factory) as client:
        await client.run_once()


if __name__ == "__main__":
    asyncio.run(main())
