"""Fault plans: the faults of emulated clients by round, read from a file.

    [[fault]]              # one client in one round; clients count from 0, rounds from 1
    client = 3
    round = 2
    kind = "delay"
    seconds = 1.5          # for a delay or a loss only

    [rates]                # probabilities for every client and round without an entry
    seed = 7
    vanish = 0.05
    delay = 0.1
    delay_seconds = 0.5

`FaultyTransport` in `faulty_transport.py` carries them out.
"""

import struct
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedlens_edge_client.emulation.settings_errors import load_toml
from fedlens_edge_client.errors import EdgeClientError


class FaultPlanError(EdgeClientError):
    """A fault plan cannot be used; the text names the key, what was found and what is allowed."""


class FaultKind(StrEnum):
    """Kinds of faults."""

    VANISH = "vanish"  # gets work, is silent for the rest of the round, takes part in later ones
    DELAY = "delay"  # reports some seconds late
    NAN = "nan"  # uploads a well-formed blob with a NaN in it
    DUPLICATE = "duplicate"  # sends its update twice
    CORRUPT = "corrupt"  # uploads bytes that do not match their digest
    LOSS = "loss"  # does not get its receipt, and sends its update again some seconds later


_LASTING = (FaultKind.DELAY, FaultKind.LOSS)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one client in one round; only a delay or a loss has `seconds`."""

    kind: FaultKind
    seconds: float = 0.0


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_RATE = Field(default=0.0, ge=0, le=1, description="a number from 0 to 1")


class FaultEntry(_Model):
    """`[[fault]]`."""

    client: int = Field(ge=0, description="an integer from 0")
    round: int = Field(ge=1, description="an integer from 1")
    kind: FaultKind = Field(strict=False, description=f"one of {', '.join(FaultKind)}")
    seconds: float | None = Field(
        default=None, ge=0, le=3600, description="a number from 0 to 3600, for a delay or a loss"
    )

    @model_validator(mode="after")
    def _seconds_belong_to_some(self) -> Self:
        if (self.seconds is None) == (self.kind in _LASTING):
            found = "no seconds" if self.seconds is None else f"seconds = {self.seconds:g}"
            raise ValueError(
                f"found kind {self.kind.value!r} with {found}; a delay or a loss needs seconds, other faults have none"
            )
        return self


class FaultRates(_Model):
    """`[rates]`: probabilities for each client and round, with a sum of at most 1."""

    seed: int = Field(default=0, ge=0, lt=1 << 64, description="an integer from 0")
    vanish: float = _RATE
    delay: float = _RATE
    nan: float = _RATE
    duplicate: float = _RATE
    corrupt: float = _RATE
    loss: float = _RATE
    delay_seconds: float = Field(default=1.0, ge=0, le=3600, description="a number from 0 to 3600")

    @model_validator(mode="after")
    def _at_most_one_fault(self) -> Self:
        if (total := sum(self.of(kind) for kind in FaultKind)) > 1 + 1e-9:
            raise ValueError(f"found rates that add up to {total:g}; together they must be at most 1")
        return self

    def of(self, kind: FaultKind) -> float:
        """The probability of one kind."""
        rate: float = getattr(self, kind.value)
        return rate


class FaultPlan(_Model):
    """All faults of a fleet; none without entries and rates."""

    fault: tuple[FaultEntry, ...] = Field(
        default=(), strict=False, description="entries, each once per client and round"
    )
    rates: FaultRates = Field(default_factory=FaultRates)

    @model_validator(mode="after")
    def _one_entry_each(self) -> Self:
        seen: set[tuple[int, int]] = set()
        for entry in self.fault:
            if (key := (entry.client, entry.round)) in seen:
                raise ValueError(f"found two faults for client {entry.client} in round {entry.round}; one is allowed")
            seen.add(key)
        return self

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a plan.

        Raises:
            FaultPlanError: The file cannot be read or has a wrong key.
        """
        return load_toml(path, cls, FaultPlanError)

    def of(self, client: int, round_number: int) -> Fault | None:
        """The fault of a client in a round: its entry, or a random draw by the rates."""
        for entry in self.fault:
            if (entry.client, entry.round) == (client, round_number):
                return Fault(entry.kind, entry.seconds or 0.0)
        message = b"fedlens/fault/v1" + struct.pack("<QQQ", self.rates.seed, client, round_number)
        left = int.from_bytes(sha256(message).digest()[:8], "little") / 2**64
        for kind in FaultKind:
            if left < self.rates.of(kind):
                return Fault(kind, self.rates.delay_seconds if kind in _LASTING else 0.0)
            left -= self.rates.of(kind)
        return None
