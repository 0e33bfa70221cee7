"""A question for all open orders of a session: part by part, cell by cell."""

from __future__ import annotations

import struct

from . import wire
from .session import Order, SessionPosition

_ASK_AGAIN_S = 1.1
"""After how long a question without an answer is repeated: gateways answer one a second."""


class Inquiry:
    """A question that is under way."""

    def __init__(self, session: int, cells: list[int]):
        self._session, self._cells = session, list(reversed(cells))
        self._next = (0, 0)
        self._asked_at: float | None = None
        self.found: dict[int, SessionPosition] = {}

    def is_done(self) -> bool:
        """Whether all cells have answered."""
        return not self._cells

    def ask(self, now: float) -> bytes:
        """The question that is due, if one is."""
        if not self._cells or self._asked_at is not None and now - self._asked_at < _ASK_AGAIN_S:
            return b""
        self._asked_at = now
        question = struct.pack("<IHHIQ", self._session, self._cells[-1], 0, *self._next)
        return wire.frame(wire.ORDERS_REQUEST, question)

    def receive(self, message: bytes) -> None:
        """A part has come; one that comes twice changes nothing."""
        cell, positions, following = wire.open_orders(message)
        if not self._cells or self._cells[-1] != cell:
            return
        if positions and positions[0][0] < self._next[0]:
            return
        for instrument, executed, last_event, _, orders in positions:
            known = self.found.setdefault(instrument, SessionPosition(instrument, executed, last_event, {}))
            for key, is_buy, price, left, _ in orders:
                known.orders[key] = Order("buy" if is_buy else "sell", price, left, True)
        self._asked_at = None
        self._next = following or (0, 0)
        if not following:
            self._cells.pop()
