"""A server that has opened its state, and writes nothing of it before it leads."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from fedlens_server.errors import StoreUnusable
from fedlens_server.store.address import StateAddress
from fedlens_server.store.database import lock, migrate, usable
from fedlens_server.store.lead import Lead


class Candidate:
    """A state, opened by one of the servers that may lead it.

    Attributes:
        address: Of the state.
        database: Its database.
        readers: Connections that read; also of others, before it leads.
        writers: Connections that write.
        lead: Its lead, or its wish for it.
        trouble: The reason for which the database could not be reached at the last try; empty: it could.
    """

    def __init__(self, address: StateAddress, lock_descriptor: int, durable: bool) -> None:
        """Use `open` instead."""
        self.address = address
        self.durable = durable
        self.database = database = address.open_database()
        self._lock_descriptor = lock_descriptor
        self.readers = database.engine(durable=durable)
        self.writers = database.engine(writes=True, durable=durable)
        self.lead = Lead(database, self.writers)
        self.trouble = ""

    @classmethod
    def open(cls, address: Path | StateAddress, *, durable: bool = True) -> Self:
        """Open a state; create it if it is missing.

        Raises:
            StoreUnusable: Another process has the folder open, a newer version of FedLens wrote the state, or it cannot
                be read or written.
        """
        address = StateAddress.of(address)
        folder = address.folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            opened = cls(address, lock(folder), durable)
        except OSError as error:
            raise StoreUnusable(f"{error.filename or folder} cannot be written: {error.strerror}") from error
        with ExitStack() as failed:
            failed.callback(opened.close)
            # An older server that leads may still use its schema.
            migrate(opened.writers, opened.database, upgrade=not opened.database.is_shared)
            failed.pop_all()
        return opened

    def try_lead(self) -> bool:
        """Take the lead if it is free.

        Raises:
            StoreUnusable: It cannot lead, or the database could not be reached for the first time.
        """
        try:
            with usable(self.database):
                taken, self.trouble = self.lead.try_take(), ""
        except StoreUnusable as error:
            if self.lead.seen.term == 0:
                raise
            self.trouble = str(error)
            return False
        if not taken and self.address.bucket is None:
            self.lead.refuse_if_contested("a standby needs server.blobs, for blobs are in the folder of that server")
        return taken

    def close(self) -> None:
        """Give the lead back, and close everything."""
        self.lead.close()
        self.readers.dispose()
        self.writers.dispose()
        os.close(self._lock_descriptor)
