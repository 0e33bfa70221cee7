"""A session over links to gateways: it waits."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import select
import socket
import struct
import time

from . import wire
from .inquiry import Inquiry
from .liveness import Liveness
from .session import Happened, Order, Session, SessionPosition
from .state import StateFile

_CONTEXT = b"nearmetal exchange handshake 1"
_ATTEMPT_S, _PAUSE_S, _WAIT_S = 0.5, 0.05, 0.1

PROGRAM = "nearmetal-client 0.1.0"
"""What this program tells gateways of itself."""


def gateways_of(network_file: str) -> list[str]:
    """Where the gateways of a network listen, by its file."""
    with open(network_file, encoding="utf-8") as file:
        return re.findall(r'^\[\[gateway\]\]\s+address = "(.*)"', file.read(), re.MULTILINE)


class Refusal(Exception):
    """A gateway refuses for a reason that lasts, in its words."""


class Client:
    """A trading client: one session. It connects when it is used."""

    def __init__(self, gateways: list[str], session: int, state: str | None = None,
                 keys: str | None = None, network: int = 0, heartbeat_s: float = 2.0,
                 cancel_after_s: int = 0):
        """
        gateways: where they listen, `HOST:PORT` or `unix:PATH`; the next one is used when one fails.
        state: the file of the session's state; without one, the state ends with the process.
        keys: the file of keys, where the network has a secret.
        network: the number of the network, 0 for any.
        heartbeat_s: how often both ends of a link send heartbeats, 0.5 to 60, or 0 for never. Without
            a sign of the gateway for three of them, the client goes to the next one.
        cancel_after_s: after how long without a link the exchange cancels the live orders, 2 to 3600,
            or 0 for never. It keeps to it until the session logs on with another one.
        """
        if not gateways:
            raise ValueError("a client needs the address of a gateway")
        self.session = Session(session)
        self.links = 0
        self._gateways, self._network = list(gateways), network
        self._key = _read_key(keys, session) if keys else None
        self._state = StateFile(state, self.session) if state else None
        self._socket: socket.socket | None = None
        self._input = bytearray()
        self._heartbeat_s, self._cancel_after_s = heartbeat_s, cancel_after_s
        self._liveness = Liveness(heartbeat_s, 0)
        self._cells: list[int] | None = None
        self._inquiry: Inquiry | None = None

    def orders(self, instrument: int) -> dict[int, Order]:
        """Its orders on an instrument that are open or on their way, by id."""
        return {key: it for (on, key), it in self.session.orders.items() if on == instrument}

    def order(self, instrument: int, side: str, price: int, quantity: int,
              is_hidden: bool = False) -> int:
        """Sends a limit order that rests until it is filled or cancelled; its id.
        `side` is "buy" or "sell", `price` in ticks, `quantity` in lots. A hidden order is never
        shown: at its price it trades after all that is displayed."""
        seq = self.session.next_seq(time.time_ns())
        command = wire.new_order(seq, self.session.number, side, price, quantity,
                                 is_hidden=is_hidden)
        return self._submit(instrument, seq, command)

    def on_close(self, instrument: int, side: str, price: int | None, quantity: int) -> int:
        """Sends an order for the closing auction alone; its id. Without a price it has no limit.
        Nobody sees it, and what is left of it is cancelled with the auction."""
        seq = self.session.next_seq(time.time_ns())
        command = wire.new_order(seq, self.session.number, side, price or 0, quantity,
                                 time_in_force=wire.AT_CLOSE, is_market=price is None)
        return self._submit(instrument, seq, command)

    def pegged(self, instrument: int, side: str, follows: str, limit: int | None, quantity: int,
               offset: int = 0) -> int:
        """Sends an order whose price follows the best displayed prices; its id. `follows` is
        "primary", the best price of its side, `offset` ticks away from the market, or "mid", the
        middle. It goes no further than its limit, if it has one, and nobody sees it."""
        seq = self.session.next_seq(time.time_ns())
        command = wire.new_order(seq, self.session.number, side, limit or 0, quantity,
                                 is_market=limit is None,
                                 peg=("primary", "mid").index(follows) + 1, offset=offset)
        return self._submit(instrument, seq, command)

    def cancel(self, instrument: int, order_id: int) -> int:
        """Cancels an order; the number of the request."""
        return self.request(instrument, wire.cancel(order_id, self.session.number))

    def replace(self, instrument: int, order_id: int, price: int, quantity: int) -> int:
        """Changes the price and the open quantity of an order; the number of the request."""
        return self.request(instrument,
                            wire.replace(order_id, self.session.number, price, quantity))

    def cancel_all(self, instrument: int) -> int:
        """Cancels all orders on an instrument; the number of the request."""
        return self.request(instrument, wire.cancel_all(self.session.number))

    def request(self, instrument: int, command: bytes) -> int:
        """Sends any command of `wire`; the number of the request. It does not wait."""
        return self._submit(instrument, self.session.next_seq(time.time_ns()), command)

    def _submit(self, instrument: int, seq: int, command: bytes) -> int:
        self.session.submit(instrument, seq, command, time.monotonic())
        self._keep()
        try:
            self._send()
        except OSError:
            self._lose_link()
        return seq

    def take_over(self, instrument: int) -> bool:
        """Goes on where the exchange says that the session stands, after `UsedBefore`. Earlier
        events are skipped, and earlier orders stay live: `cancel_all` ends them."""
        is_taken = self.session.take_over(instrument)
        self._keep()
        return is_taken

    def open_orders(self, limit_s: float) -> dict[int, SessionPosition] | None:
        """By instrument, where the exchange says that the session stands, with its live orders; none
        if not all cells answer within `limit_s`. What happens meanwhile is given by `next`."""
        until = time.monotonic() + limit_s
        self._inquiry = None
        while (left := until - time.monotonic()) > 0:
            self._work(left)
            if self._inquiry and self._inquiry.is_done():
                found, self._inquiry = self._inquiry.found, None
                return found
            if self._inquiry is None and self._cells is not None:
                self._inquiry = Inquiry(self.session.number, self._cells)
        self._inquiry = None
        return None

    def resume(self, limit_s: float) -> bool:
        """Goes on where the exchange says that the session stands on all instruments, with its live
        orders: for a client that has no state, or an old one. Earlier events are skipped. Whether
        all cells have answered within `limit_s`."""
        found = self.open_orders(limit_s)
        for standing in (found or {}).values():
            self.session.resume(standing)
        self._keep()
        return found is not None

    def next(self, limit_s: float) -> Happened | None:
        """What happens next; none if nothing does within `limit_s`. What was given before counts as
        handled: until this is called again, it comes again after a restart.

        Raises `Refusal` if a gateway refuses for a reason that lasts."""
        until = time.monotonic() + limit_s
        while True:
            happened = self.session.next()
            self._keep()
            left = until - time.monotonic()
            if happened or left <= 0:
                return happened
            self._work(left)

    def _work(self, left: float) -> None:
        """Makes a link if there is none, sends what is to be sent, and handles what comes."""
        try:
            if not self._socket:
                self._connect()
            self.session.tick(time.monotonic())
            self._send()
            if not self._read(min(left, _WAIT_S)) and self._liveness.is_silent(time.monotonic()):
                raise ConnectionError("the gateway is silent")
            self._handle_frames()
        except (OSError, wire.WireError):
            self._lose_link()
            time.sleep(min(_PAUSE_S, max(left, 0)))

    def close(self) -> None:
        """Ends the link."""
        self._lose_link()

    def _connect(self) -> None:
        address, _, port = self._gateways[0].rpartition(":")
        is_unix = self._gateways[0].startswith("unix:")
        self._socket = socket.socket(socket.AF_UNIX) if is_unix else None
        if self._socket:
            self._socket.settimeout(_ATTEMPT_S)
            self._socket.connect(self._gateways[0][len("unix:"):])
        else:
            self._socket = socket.create_connection((address.strip("[]"), int(port)), _ATTEMPT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._say_hello()
        if self._heartbeat_s or self._cancel_after_s:
            self._socket.sendall(wire.frame(wire.LOGON, struct.pack(
                "<III", self.session.number, round(self._heartbeat_s * 1000), self._cancel_after_s)))
        self._liveness = Liveness(self._heartbeat_s, time.monotonic())
        self.links += 1
        self.session.connected(time.monotonic())

    def _say_hello(self) -> None:
        assert self._socket
        who, evidence = struct.pack("<BI", 0, self.session.number), b"\0"
        if self._key:
            challenge, nonce = self._wait_for(wire.CHALLENGE), os.urandom(32)
            evidence = b"\1" + nonce + _proof(self._key, b"c", challenge + nonce, who)
        hello = struct.pack("<QQ", wire.DIGEST, self._network) + who + b"\0" + evidence
        introduction = wire.introduction(PROGRAM)
        self._socket.sendall(wire.frame(wire.FORMAT, introduction) + wire.frame(wire.HELLO, hello))
        if self._key:
            it = self._wait_for(wire.WELCOME)
            claim = who + it[16:24] + it[8:16] + it[28:31]
            if it[31:] != b"\1" + _proof(self._key, b"a", challenge + nonce, claim):
                raise Refusal(f"{self._gateways[0]} does not prove that it has the secret")

    def _wait_for(self, wanted: int) -> bytes:
        until = time.monotonic() + _ATTEMPT_S
        while time.monotonic() < until:
            self._read(_WAIT_S)
            while (found := wire.take(self._input)) is not None:
                if found[0] == wire.CLOSE:
                    raise Refusal(f"{self._gateways[0]} refuses: {_text(found[1])}")
                if found[0] == wanted:
                    return found[1]
        raise OSError("the gateway does not answer")

    def _lose_link(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None
        self._cells = self._inquiry = None
        self._input.clear()
        self.session.disconnected()
        self._gateways.append(self._gateways.pop(0))

    def _keep(self) -> None:
        if self._state and self.session.changes:
            self._state.append(self.session.changes)
        self.session.changes.clear()

    def _send(self) -> None:
        now = time.monotonic()
        frames = b"" if self._cells is None else self._liveness.beat(now)
        if self._inquiry:
            frames += self._inquiry.ask(now)
        frames += bytes(self.session.frames)
        if self._socket and frames:
            self.session.frames.clear()
            self._socket.sendall(frames)

    def _read(self, limit_s: float) -> bool:
        if not self._socket or not select.select([self._socket], [], [], limit_s)[0]:
            return False
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the link has ended")
        self._liveness.contacted(time.monotonic())
        self._input += data
        return True

    def _handle_frames(self) -> None:
        while (found := wire.take(self._input)) is not None:
            kind, message = found
            if kind == wire.GO_AWAY:
                raise ConnectionError("the gateway leaves")
            if kind == wire.CLOSE:
                if _text(message).startswith(wire.SILENCE):
                    # The program did not call for too long; it goes on over another link.
                    raise ConnectionError(_text(message))
                raise Refusal(f"{self._gateways[0]} refuses: {_text(message)}")
            if kind == wire.LOGGED_ON:
                count = struct.unpack_from("<I", message, 14)[0]
                self._cells = list(struct.unpack_from(f"<{count}H", message, 18))
            elif kind == wire.OPEN_ORDERS and self._inquiry:
                self._inquiry.receive(message)
            self.session.receive(kind, message, time.monotonic())


def _text(close: bytes) -> str:
    """The sentence of a gateway, without what would command the terminal that shows it."""
    sentence = close[2:].decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in sentence)


def _proof(key: bytes, end: bytes, nonces: bytes, claim: bytes) -> bytes:
    return hmac.new(key, _CONTEXT + end + nonces + b"link " + claim, hashlib.sha256).digest()


def _read_key(path: str, session: int) -> bytes:
    with open(path, encoding="ascii") as file:
        for words in map(str.split, file):
            if words[:2] == ["session", str(session)]:
                return bytes.fromhex(words[2])
    raise ValueError(f"{path} has no key of session {session}")
