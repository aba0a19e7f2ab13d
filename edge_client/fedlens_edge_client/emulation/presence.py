"""Presence plans: the hours in which emulated phones are there, read from a file.

    seed = 7
    hours = [0.9, 0.9, 0.9, 0.9, 0.8, 0.5, 0.2, ...]   # share of phones that nobody uses, from midnight, 24 numbers
    charging = 0.7       # share of those that charge
    unmetered = 0.8      # share of those that are on Wi-Fi
    leaves = 0.3         # probability that one goes away in the middle of the hour
    time_zones = 3       # phones live in so many time zones, an hour apart
    clock_off_s = 86400  # clocks of phones are set wrong by up to this, and anew every day

An operating system runs a background job in the hours in which all of it holds. `emulated_time.py` lets clients come
and go by the plan.
"""

import struct
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from fedlens_edge_client.emulation.settings_errors import load_toml
from fedlens_edge_client.errors import EdgeClientError

HOUR_S = 3600.0
DAY_HOURS = 24
_SHARE = "a number from 0 to 1"


class PresencePlanError(EdgeClientError):
    """A presence plan cannot be used; the text names the key, what was found and what is allowed."""


class PresencePlan(BaseModel):
    """The hours of all phones of a fleet; by default all are always there, with clocks that are right."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seed: int = Field(default=0, ge=0, lt=1 << 64, description="an integer from 0")
    hours: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        default=(1.0,) * DAY_HOURS,
        min_length=DAY_HOURS,
        max_length=DAY_HOURS,
        strict=False,
        description="24 numbers from 0 to 1",
    )
    charging: float = Field(default=1.0, ge=0, le=1, description=_SHARE)
    unmetered: float = Field(default=1.0, ge=0, le=1, description=_SHARE)
    leaves: float = Field(default=0.0, ge=0, le=1, description=_SHARE)
    time_zones: int = Field(default=1, ge=1, le=DAY_HOURS, description="an integer from 1 to 24")
    clock_off_s: float = Field(default=0.0, ge=0, description="a number from 0")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a plan.

        Raises:
            PresencePlanError: The file cannot be read or has a wrong key.
        """
        return load_toml(path, cls, PresencePlanError)

    def seconds_there(self, client: int, hour: int) -> float:
        """The time for which a phone is there, from the beginning of an hour: 0 to 3600 s.

        `hour` counts from the epoch, in the first time zone.
        """
        share = self.hours[(hour + client % self.time_zones) % DAY_HOURS] * self.charging * self.unmetered
        if self._drawn("there", client, hour) >= share:
            return 0.0
        if self._drawn("leaves", client, hour) >= self.leaves:
            return HOUR_S
        return HOUR_S * self._drawn("until", client, hour)

    def clock_error_s(self, client: int, hour: int) -> float:
        """The time by which a phone's clock is fast in an hour; negative: slow."""
        return self.clock_off_s * (2 * self._drawn("clock", client, hour // DAY_HOURS) - 1)

    def _drawn(self, purpose: str, client: int, when: int) -> float:
        """A uniform number from 0 to 1, 1 excluded, for one purpose."""
        message = b"fedlens/presence/v1/" + purpose.encode() + struct.pack("<QQQ", self.seed, client, when)
        return (int.from_bytes(sha256(message).digest()[:8], "little") >> 11) / 2**53
