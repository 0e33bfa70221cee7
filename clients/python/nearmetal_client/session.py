"""A session of the exchange, without I/O and clocks: its requests, its events and its orders."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Union

from . import wire
from .generated import CANCEL_WORDS, REFUSAL_WORDS, REJECT_WORDS

IN_FLIGHT_MAX = 64
"""Requests of a session on an instrument in flight: so many outcomes the exchange keeps."""

ASK_AGAIN_S = 1.0
"""After how long a resend request without an answer is repeated."""

LOOK_AGAIN_S = (2.0, 8.0)
"""How long after it is linked a session asks again for all that it lacks: the gateway that it has
left may have read its requests late, and got events that nobody took."""

REJECT_REASONS = [
    "DuplicateId", "UnknownOrder", "BadQuantity", "BadCombination", "WouldTake", "OutsideBands",
    "Halted", "InAuction", "WrongState", "Expired", "NotAllowed", "TooManyParts", "TooManyOrders",
    "TooManyOwnOrders", "TooManyOwnerOrders", "TooManyOwnerCellOrders", "TooManyCellOrders",
    "NotListed", "OutsideCollar", "TooLarge", "OwnerStopped", "FirmQuantity", "FirmOrderValue",
    "FirmOrders", "FirmValue", "FirmPosition", "FirmNeedsPrice", "NoClosing", "BadPeg", "TooManyPegs",
    "TooManyOwnerPegs"]
"""By code: why an order or command was rejected."""

CANCEL_REASONS = ["User", "Mass", "Unfilled", "Killed", "BelowMinimum", "SelfTrade", "Bands", "Day",
                  "Expired", "TooManyTrades", "Disconnected", "Operator", "Closed"]
"""By code: why an order was cancelled."""

REFUSAL_REASONS = [
    "TooManyCellInstruments", "TooManyCellSessions", "TooManyLinkSessions",
    "TooManySessionInstruments", "TooManyPendingRequests", "TooManyPendingBytes",
    "UnknownPredecessor", "TooManyOwnerInstruments", "TooManyOwnerSessions", "TooManyOwnerBytes",
    "Retired", "NotListed"]
"""By code: why a request is refused."""



@dataclass(frozen=True)
class Event:
    """An event of the session: its number on the instrument, its name and its fields."""

    instrument: int
    number: int
    name: str
    fields: dict[str, int]

    def __str__(self) -> str:
        text = f"event {self.number} on instrument {self.instrument}: {self.name} {self.fields}"
        return f"{text}: {self.words}" if self.words else text

    @property
    def words(self) -> str:
        """Why an order was rejected or cancelled; empty for other events."""
        words = {"rejected": REJECT_WORDS, "cancelled": CANCEL_WORDS}.get(self.name)
        return words[self.fields["reason"]].format(**self.fields) if words else ""


@dataclass(frozen=True)
class Refused:
    """A request is not executed, and never will be."""

    instrument: int
    seq: int
    reason: str
    previous_seq: int

    def __str__(self) -> str:
        return (f"request {self.seq} on instrument {self.instrument} is refused: "
                f"{REFUSAL_WORDS[REFUSAL_REASONS.index(self.reason)]} ({self.reason}); the next one follows request "
                f"{self.previous_seq}")


@dataclass(frozen=True)
class EventsLost:
    """Nobody keeps events up to this one any more: orders may have changed without a word."""

    instrument: int
    last: int

    def __str__(self) -> str:
        return (f"events on instrument {self.instrument} up to number {self.last} are lost: cancel "
                "all orders there to know them again")


@dataclass(frozen=True)
class UsedBefore:
    """The exchange knows more of the session than this client. Nothing is sent there until
    `Client.take_over`."""

    instrument: int
    executed_seq: int
    known_seq: int
    live_orders: int

    def __str__(self) -> str:
        return (f"the exchange has executed request {self.executed_seq} of this session on "
                f"instrument {self.instrument}, and this client knows of none after "
                f"{self.known_seq}: its state is lost or old, or another client uses the session; "
                f"{self.live_orders} orders are live there; take over to go on")


Happened = Union[Event, Refused, EventsLost, UsedBefore]


@dataclass
class Order:
    """An order of the session; `is_open`: whether the exchange has accepted it."""

    side: str
    price: int
    left: int
    is_open: bool = False


@dataclass
class SessionPosition:
    """Where a session stands on an instrument, as the exchange says: the numbers of its last
    request and of its last event, and its live orders by id."""

    instrument: int
    executed_seq: int
    last_event: int
    orders: dict[int, Order]


@dataclass
class _Pending:
    seq: int
    previous: int
    command: bytes


@dataclass
class _Stream:
    """A session on an instrument."""

    standing: str | tuple[int, int] = "unknown"
    last: int = 0
    answered: int = 0
    pending: list[_Pending] = field(default_factory=list)
    sent: int = 0
    seen: int = 0
    handled: int = 0
    asked_at: float | None = None

    def submit(self, seq: int, command: bytes) -> None:
        self.pending.append(_Pending(seq, self.last, command))
        self.last = seq

    def take(self, seq: int) -> _Pending | None:
        for at, one in enumerate(self.pending):
            if one.seq == seq:
                self.sent -= at < self.sent
                return self.pending.pop(at)
        return None

    def answer(self, seq: int) -> bool:
        found = self.take(seq)
        if found:
            self.answered = max(self.answered, seq)
        return found is not None

    def refuse(self, seq: int) -> _Pending | None:
        found = self.take(seq)
        if found:
            if self.last == seq:
                self.last = found.previous
            for one in self.pending:
                if one.previous == seq:
                    one.previous = found.previous
        return found


class Session:
    """Hand it messages and times, send its `frames`, and keep its `changes` before."""

    def __init__(self, number: int):
        self.number = number
        self.orders: dict[tuple[int, int], Order] = {}
        """By instrument and id, as of the events that were handled."""
        self.frames = bytearray()
        self.changes: list[str] = []
        self._last_seq = 0
        self._streams: dict[int, _Stream] = {}
        self._queue: deque[Happened] = deque()
        self._handling: Happened | None = None
        self._is_connected = False
        self._looks_at: list[float] = []

    def _stream(self, instrument: int) -> _Stream:
        return self._streams.setdefault(instrument, _Stream())

    def pending(self, instrument: int) -> int:
        """Requests on an instrument without an answer."""
        return len(self._stream(instrument).pending)

    def restore(self, line: str) -> None:
        """Takes over a change that was kept."""
        kind, *words = line.split(" ")
        if kind == "numbered":
            self._last_seq = max(self._last_seq, int(words[0]))
            return
        on, number, *rest = int(words[0]), int(words[1]), *words[2:]
        stream = self._stream(on)
        if kind == "base":
            stream.last, stream.answered = number, max(stream.answered, number)
        elif kind == "submitted":
            self._last_seq = max(self._last_seq, number)
            stream.submit(number, bytes.fromhex(rest[0]))
        elif kind == "answered":
            stream.answer(number)
        elif kind == "refused":
            stream.refuse(number)
        elif kind == "handled":
            stream.seen = stream.handled = number
        elif kind == "order":
            side, price, left, is_open = rest
            self.orders[on, number] = Order(side, int(price), int(left), is_open == "1")
        elif kind == "gone":
            self.orders.pop((on, number), None)
        else:
            raise ValueError(kind)

    def snapshot(self) -> list[str]:
        """All that must be kept."""
        lines = [f"numbered {self._last_seq}"]
        for on, stream in self._streams.items():
            last = stream.pending[0].previous if stream.pending else stream.last
            lines += [f"base {on} {last}", f"handled {on} {stream.handled}"]
            lines += [f"submitted {on} {it.seq} {it.command.hex()}" for it in stream.pending]
        return lines + [_order_line(on, key, it) for (on, key), it in self.orders.items()]

    def next_seq(self, wall_ns: int) -> int:
        """The number of the next request: the wall clock's, so that no client which has lost its
        state uses one again. It serves as the id of a new order as well."""
        return max(wall_ns, self._last_seq + 1)

    def submit(self, instrument: int, seq: int, command: bytes, now: float) -> None:
        """Submits a command under a number of `next_seq`."""
        assert seq > self._last_seq
        self._last_seq = seq
        stream = self._stream(instrument)
        if isinstance(stream.standing, tuple):
            # Until it takes over.
            self._queue.append(Refused(instrument, seq, "UnknownPredecessor", stream.standing[0]))
            return
        self.changes.append(f"submitted {instrument} {seq} {command.hex()}")
        if command[0] == 0:
            key, price, _, quantity = struct.unpack_from("<QqqQ", command, 1)
            if (instrument, key) not in self.orders:
                side = ("buy", "sell")[command[61]]
                self._keep_order(instrument, key, Order(side, price, quantity))
        stream.submit(seq, command)
        if stream.standing == "unknown" and stream.asked_at is None:
            self._ask(instrument, now)
        self._send_waiting(instrument)

    def take_over(self, instrument: int) -> bool:
        """Goes on where the exchange says that the session stands: see `Client.take_over`."""
        stream = self._stream(instrument)
        if not isinstance(stream.standing, tuple):
            return False
        executed, event = stream.standing
        stream.standing = "proven"
        stream.last = stream.answered = executed
        stream.seen = stream.handled = event
        self._last_seq = max(self._last_seq, executed)
        self.changes += [f"numbered {self._last_seq}", f"base {instrument} {executed}",
                         f"handled {instrument} {event}"]
        self._handling = None
        self._queue = deque(it for it in self._queue if it.instrument != instrument)
        return True

    def resume(self, standing: SessionPosition) -> None:
        """Goes on where the exchange says that the session stands on an instrument, with the orders
        that it has there, unless this client knows of requests there that the exchange does not."""
        on, executed = standing.instrument, standing.executed_seq
        stream = self._stream(on)
        if stream.pending or stream.answered > executed:
            return
        stream.standing = "unknown"
        stream.last = stream.answered = executed
        stream.seen = stream.handled = standing.last_event
        self._last_seq = max(self._last_seq, executed)
        self.changes += [f"numbered {self._last_seq}", f"base {on} {executed}",
                         f"handled {on} {standing.last_event}"]
        self._handling = None
        self._queue = deque(it for it in self._queue if it.instrument != on)
        for instrument, key in list(self.orders):
            if instrument == on:
                self._keep_order(on, key, None)
        for key, order in standing.orders.items():
            self._keep_order(on, key, order)

    def connected(self, now: float) -> None:
        """There is a link to a gateway over which the session has said hello."""
        self._is_connected = True
        self._looks_at = [now + after for after in LOOK_AGAIN_S]
        self.frames.clear()
        for instrument, stream in self._streams.items():
            stream.sent = 0
            self._send_waiting(instrument)
            self._ask(instrument, now)

    def disconnected(self) -> None:
        """The link has ended."""
        self._is_connected = False
        self.frames.clear()

    def tick(self, now: float) -> None:
        """Time has passed."""
        looks_again = bool(self._looks_at) and self._looks_at[0] <= now
        if looks_again:
            self._looks_at.pop(0)
        for instrument, stream in self._streams.items():
            is_late = stream.asked_at is not None and now - stream.asked_at >= ASK_AGAIN_S
            if looks_again or is_late:
                self._ask(instrument, now)

    def next(self) -> Happened | None:
        """What has happened next. What was given before counts as handled from now on."""
        done, self._handling = self._handling, None
        if isinstance(done, Event):
            self._track(done)
            self._handled(done.instrument, done.number)
        elif isinstance(done, EventsLost):
            self._handled(done.instrument, done.last)
        self._handling = self._queue.popleft() if self._queue else None
        return self._handling

    def _handled(self, instrument: int, number: int) -> None:
        self._stream(instrument).handled = number
        self.changes.append(f"handled {instrument} {number}")

    def receive(self, kind: int, message: bytes, now: float) -> None:
        """Handles a message of the gateway."""
        if kind == wire.EVENTS_LOST:
            for instrument in self._streams:
                self._ask(instrument, now)
        if kind not in (wire.REPLY, wire.PRIVATE, wire.RESENT, wire.REFUSED):
            return
        on, session, number = struct.unpack_from("<IIQ", message)
        if session != self.number:
            return
        if kind == wire.REPLY:
            self._take_events(on, struct.unpack_from("<Q", message, 24)[0], message[58:], now)
            if self._stream(on).answer(number):
                self.changes.append(f"answered {on} {number}")
                self._send_waiting(on)
        elif kind == wire.PRIVATE:
            self._take_events(on, struct.unpack_from("<Q", message, 16)[0], message[29:], now)
        elif kind == wire.RESENT:
            self._take_resent(on, number, message, now)
        else:
            self._take_refused(on, number, REFUSAL_REASONS[message[36]], now)

    def _take_refused(self, on: int, seq: int, reason: str, now: float) -> None:
        stream = self._stream(on)
        refused = stream.refuse(seq)
        if not refused:
            return
        self.changes.append(f"refused {on} {seq}")
        if refused.command[0] == 0:
            self._drop_draft(on, struct.unpack_from("<Q", refused.command, 1)[0])
        self._queue.append(Refused(on, seq, reason, stream.last))
        if reason == "UnknownPredecessor" and stream.standing == "proven":
            # Perhaps somebody else has sent requests.
            stream.standing = "unknown"
            self._ask(on, now)
        self._send_waiting(on)

    def _take_resent(self, on: int, previous: int, message: bytes, now: float) -> None:
        executed, live = struct.unpack_from("<QI", message, 16)
        has_gap, data = bool(message[32]), message[33:]
        stream = self._stream(on)
        stream.asked_at = None
        if executed > stream.answered and all(it.seq != executed for it in stream.pending):
            self._find_used(on, executed, previous + len(wire.events(data)), live)
            return
        if stream.standing == "unknown":
            stream.standing = "proven"
        if has_gap and previous > stream.seen:
            stream.seen = previous
            self._queue.append(EventsLost(on, previous))
        self._take_events(on, previous, data, now)
        self._send_waiting(on)

    def _find_used(self, on: int, executed: int, event: int, live: int) -> None:
        """The exchange knows more. What waits for an answer is dropped: it was executed or not, and
        a number below one that was executed would be taken for an old request."""
        stream = self._stream(on)
        if stream.standing == (executed, event):
            return
        stream.standing = (executed, event)
        self.changes += [f"refused {on} {it.seq}" for it in reversed(stream.pending)]
        stream.pending.clear()
        stream.sent = 0
        for instrument, key in list(self.orders):
            if instrument == on:
                self._keep_order(on, key, None)
        self._queue.append(UsedBefore(on, executed, stream.answered, live))

    def _take_events(self, on: int, previous: int, data: bytes, now: float) -> None:
        stream = self._stream(on)
        if isinstance(stream.standing, tuple):
            return
        if previous > stream.seen:
            if stream.asked_at is None:
                self._ask(on, now)
            return
        for number, (name, fields) in enumerate(wire.events(data), previous + 1):
            if number > stream.seen:
                stream.seen = number
                self._queue.append(Event(on, number, name, fields))

    def _ask(self, on: int, now: float) -> None:
        if self._is_connected:
            stream = self._stream(on)
            stream.asked_at = now
            self.frames += wire.frame(wire.RESEND_REQUEST, struct.pack(
                "<IIQHH", on, self.number, stream.seen, 0, 0))

    def _send_waiting(self, on: int) -> None:
        stream = self._stream(on)
        while (self._is_connected and stream.standing == "proven"
               and stream.sent < min(IN_FLIGHT_MAX, len(stream.pending))):
            it = stream.pending[stream.sent]
            self.frames += wire.frame(wire.REQUEST, struct.pack(
                "<IIQQQQQIHHB?B", on, self.number, it.seq, it.previous, stream.handled, 0, 0, 0, 0,
                0, 0, stream.sent == 0, 0) + it.command)
            stream.sent += 1

    def _track(self, event: Event) -> None:
        """Keeps what an event says of the session's orders."""
        on, name, it = event.instrument, event.name, event.fields
        if name == "rejected" and REJECT_REASONS[it["reason"]] != "DuplicateId":
            self._drop_draft(on, it["id"])
        elif name == "traded":
            for side in ("maker", "taker"):
                if it[side + "_user"] == self.number:
                    self._change_order(on, it[side], left=it[side + "_left"])
        elif name == "accepted":
            self._change_order(on, it["id"], is_open=True)
        elif name == "cancelled":
            self._change_order(on, it["id"], left=0)
        elif name == "replaced":
            self._change_order(on, it["id"], price=it["price"], left=it["quantity"])
        elif name in ("reduced", "slid"):
            changed = {key: it[key] for key in ("left", "price") if key in it}
            self._change_order(on, it["id"], **changed)

    def _change_order(self, on: int, key: int, **changed: int) -> None:
        order = self.orders.get((on, key))
        if order:
            new = Order(**{**vars(order), **changed})  # type: ignore[arg-type]
            self._keep_order(on, key, new if new.left else None)

    def _drop_draft(self, on: int, key: int) -> None:
        order = self.orders.get((on, key))
        if order and not order.is_open:
            self._keep_order(on, key, None)

    def _keep_order(self, on: int, key: int, order: Order | None) -> None:
        if order:
            self.orders[on, key] = order
            self.changes.append(_order_line(on, key, order))
        else:
            self.orders.pop((on, key), None)
            self.changes.append(f"gone {on} {key}")


def _order_line(on: int, key: int, it: Order) -> str:
    return f"order {on} {key} {it.side} {it.price} {it.left} {int(it.is_open)}"
