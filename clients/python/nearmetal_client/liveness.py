"""Whether a gateway is there: heartbeats of a link, as the client sends and misses them."""

from __future__ import annotations

import struct

from . import wire

_MISSED_MAX = 3
"""Intervals without a sign of the gateway after which the client goes to the next one."""


class Liveness:
    """The heartbeats of a link that was made now. Without an interval there are none."""

    def __init__(self, interval_s: float, now: float):
        self._interval_s, self._contact, self._sent, self._number = interval_s, now, now, 0

    def contacted(self, now: float) -> None:
        """Something has come."""
        self._contact = now

    def is_silent(self, now: float) -> bool:
        """Nothing has come although it was looked for; whether the gateway is taken for dead."""
        return self._interval_s > 0 and now - self._contact > _MISSED_MAX * self._interval_s

    def beat(self, now: float) -> bytes:
        """A heartbeat, if one is due."""
        if self._interval_s <= 0 or now - self._sent < self._interval_s:
            return b""
        self._sent = now
        self._number += 1
        return wire.frame(wire.HEARTBEAT, struct.pack("<Q", self._number))
