"""Frames of the exchange: bytes in, bytes out."""

from __future__ import annotations

import struct

from .generated import MESSAGES

VERSION = 10
DIGEST = 0x172AAFFB5277F838
"""Of the format, as docs/wire.md has it: a gateway with another one refuses."""

AT_CLOSE = 5
"""Time in force of orders for the closing auction."""

HELLO, REQUEST, REPLY, PRIVATE, WELCOME, RESEND_REQUEST, CLOSE = 1, 2, 3, 4, 8, 15, 16
CHALLENGE, GO_AWAY, REFUSED, RESENT, EVENTS_LOST, FORMAT = 17, 23, 25, 26, 29, 31
LOGON, LOGGED_ON, HEARTBEAT, ORDERS_REQUEST, OPEN_ORDERS = 40, 41, 42, 45, 46

SILENCE = "no heartbeat"
"""So a gateway begins when it ends the link of a client whose heartbeats have ended."""


class WireError(Exception):
    """Bytes that are no frame, or of another version."""


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def frame(kind: int, message: bytes) -> bytes:
    """The frame of a message."""
    prefix = struct.pack("<IBBBBI", 16 + len(message), VERSION, kind, 0, 0, len(message))
    return prefix + struct.pack("<I", crc32c(prefix + message)) + message


def take(data: bytearray) -> tuple[int, bytes] | None:
    """Removes the first frame: its kind and its message; none if it has not come completely."""
    if len(data) < 16:
        return None
    length, version, kind, _, _, size, checksum = struct.unpack_from("<IBBBBII", data)
    if version != VERSION:
        raise WireError(f"the gateway has version {version} of the format, this client {VERSION}")
    if not 16 + size <= length <= 1 << 20:
        raise WireError(f"a frame of {length} bytes")
    if len(data) < length:
        return None
    head, message = bytes(data[:12]), bytes(data[16:16 + size])
    del data[:length]
    if checksum != crc32c(head + message):
        raise WireError("a frame with a wrong checksum")
    return kind, message


def new_order(order_id: int, session: int, side: str, price: int, quantity: int,
              time_in_force: int = 1, is_hidden: bool = False, is_market: bool = False,
              peg: int = 0, offset: int = 0) -> bytes:
    """The command of an order; `time_in_force` and `peg` as in docs/wire.md, 1: until cancelled."""
    return b"\0" + struct.pack("<QqqQQQQIBBBBB?BH", order_id, price, 0, quantity, 0, 0, 0, session,
                               ("buy", "sell").index(side), is_market, time_in_force, 0, 1, is_hidden,
                               peg, offset)


def replace(order_id: int, session: int, price: int, quantity: int) -> bytes:
    """The command that changes price and open quantity of an order."""
    return b"\1" + struct.pack("<QQqQ", order_id, session, price, quantity)


def cancel(order_id: int, session: int) -> bytes:
    """The command that cancels an order."""
    return b"\2" + struct.pack("<QQ", order_id, session)


def cancel_all(session: int) -> bytes:
    """The command that cancels all orders of a session on an instrument."""
    return b"\3" + struct.pack("<Q", session)


EVENTS: list[tuple[str, str, str]] = [
    ("accepted", "<QQ", "id user"),
    ("rejected", "<QQBQQ", "id user reason most asked"),
    ("traded", "<QQIIqQQQ",
     "maker taker taker_user maker_user price quantity maker_left taker_left"),
    ("cancelled", "<QQQB", "id user left reason"),
    ("replaced", "<QQqQ?", "id user price quantity kept_priority"),
    ("reduced", "<QQQ", "id user left"),
    ("slid", "<QQq", "id user price"),
    ("triggered", "<QQ", "id user"),
    ("refreshed", "<QQQ", "id user shown"),
    ("bands_set", "<qq", "low high"),
    ("halted", "<", ""),
    ("resumed", "<", ""),
    ("auction_begun", "<", ""),
    ("uncrossed", "<qQ?", "price volume has_price"),
]
"""By code: the name of an event, its layout and its fields."""


def events(data: bytes) -> list[tuple[str, dict[str, int]]]:
    """The events of a series, each with its fields."""
    found, at = [], 0
    while at < len(data):
        name, layout, fields = EVENTS[data[at]]
        values = struct.unpack_from(layout, data, at + 1)
        found.append((name, dict(zip(fields.split(), values))))
        at += 1 + struct.calcsize(layout)
    return found


def introduction(program: str) -> bytes:
    """The message that says which messages this client knows: a gateway of another version accepts
    the client if those that both know are the same, and else says which one differs."""
    text = program.encode()
    known = b"".join(struct.pack("<BQ", code, digest) for code, digest in MESSAGES.items())
    return struct.pack("<H", len(text)) + text + struct.pack("<I", len(MESSAGES)) + known


def open_orders(message: bytes) -> tuple[int, list[tuple], tuple[int, int] | None]:
    """A part of the open orders: its cell; for each instrument its number, the last request, the
    last event, how many orders are live, and these; and where the next part begins."""
    cell = struct.unpack_from("<H", message, 4)[0]
    (count,), at = struct.unpack_from("<I", message, 8), 12
    positions = []
    for _ in range(count):
        head = struct.unpack_from("<IQQII", message, at)
        at += 28
        orders = [struct.unpack_from("<Q?qQ?", message, at + n * 26) for n in range(head[4])]
        at += 26 * head[4]
        positions.append((*head[:4], orders))
    return cell, positions, struct.unpack_from("<IQ", message, at + 1) if message[at] else None
