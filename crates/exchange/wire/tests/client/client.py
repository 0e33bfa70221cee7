"""A client of the exchange, written from docs/wire.md alone. Two sessions trade with each other;
the gateway may die meanwhile. Prints `half` when half of the requests are answered, and a line of
JSON at the end.
usage: client.py DIGEST REQUESTS KEYS-OR-DASH ADDRESS..."""

import hashlib, hmac, json, os, select, socket, struct, sys, time

VERSION = 10
HELLO, REQUEST, REPLY, PRIVATE, WELCOME, RESEND_REQUEST, CLOSE = 1, 2, 3, 4, 8, 15, 16
CHALLENGE, GO_AWAY, REFUSED, RESENT, EVENTS_LOST = 17, 23, 25, 26, 29
ACCEPTED, TRADED = 0, 2
EVENT_BYTES = [16, 17, 56, 25, 33, 24, 24, 16, 24, 16, 0, 0, 0, 17]
CONTEXT = b"nearmetal exchange handshake 1"
IN_FLIGHT_MAX = 16

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

def frame(kind, message):
    prefix = struct.pack("<IBBBBI", 16 + len(message), VERSION, kind, 0, 0, len(message))
    return prefix + struct.pack("<I", crc32c(prefix + message)) + message

class Link:
    """A link to a gateway, over which these sessions have said hello."""

    def __init__(self, address, digest, sessions, keys):
        kind, rest = address.rsplit(":", 1)
        is_unix = kind == "unix"
        self.socket = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
        self.socket.connect(rest if is_unix else (kind, int(rest)))
        self.input, nonce, challenge = b"", os.urandom(32), b""
        if keys:
            challenge = self.wait_for(CHALLENGE)
        for session in sessions:
            who, evidence = struct.pack("<BI", 0, session), b"\0"
            if keys:
                evidence = b"\1" + nonce + self.proof(keys[session], b"c", challenge, nonce, who)
            self.socket.sendall(frame(HELLO, struct.pack("<QQ", digest, 0) + who + b"\0" + evidence))
        for session in sessions if keys else []:
            welcome = self.wait_for(WELCOME)
            who, start = struct.pack("<BI", 0, session), welcome[16:24] + welcome[8:16] + welcome[28:31]
            proof = self.proof(keys[session], b"a", challenge, nonce, who, start)
            assert welcome[31:] == b"\1" + proof, "the gateway does not have the secret"

    @staticmethod
    def proof(key, end, challenge, nonce, who, start=b""):
        text = CONTEXT + end + challenge + nonce + b"link " + who + start
        return hmac.new(key, text, hashlib.sha256).digest()

    def wait_for(self, wanted):
        while True:
            kind, message = self.next(5) or (0, b"")
            if kind == wanted:
                return message

    def next(self, limit_s):
        """The next message with its kind; none if none comes in time."""
        while len(self.input) < 16 or len(self.input) < struct.unpack_from("<I", self.input)[0]:
            if not select.select([self.socket], [], [], limit_s)[0]:
                return None
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the link has ended")
            self.input += data
        length, version, kind, _, _, size, checksum = struct.unpack_from("<IBBBBII", self.input)
        one, self.input = self.input[:length], self.input[length:]
        message = one[16:16 + size]
        assert version == VERSION and checksum == crc32c(one[:12] + message), "no frame"
        if kind == CLOSE:
            raise SystemExit("refused: " + message[2:].decode())
        return kind, message

class Stream:
    """A session on an instrument."""

    def __init__(self):
        self.unanswered = {}  # by client_seq, in order: previous_seq and command
        self.last = self.seen = self.asked_at = 0
        self.events = []

class Client:
    def __init__(self, digest, requests, keys, addresses):
        self.digest, self.requests, self.keys, self.addresses = digest, requests, keys, addresses
        self.streams = {(session, on): Stream() for session in (1, 2) for on in (0, 1)}
        self.sequences = {1: 0, 2: 0}
        self.answers, self.repeated, self.refused, self.links, self.sent = [], 0, 0, 0, 0

    def connect(self):
        """Connects to the next gateway that answers, and sends again what has no answer."""
        while True:
            self.addresses.append(self.addresses.pop(0))
            try:
                self.link = Link(self.addresses[-1], self.digest, (1, 2), self.keys)
                for key, stream in self.streams.items():
                    for at, seq in enumerate(stream.unanswered):
                        self.send(key, seq, at == 0)
                self.links += 1
                return self.ask_all()
            except OSError:
                time.sleep(0.05)

    def send(self, key, seq, is_previous_answered):
        (session, instrument), stream = key, self.streams[key]
        previous, command = stream.unanswered[seq]
        self.link.socket.sendall(frame(REQUEST, struct.pack(
            "<IIQQQQQIHHB?B", instrument, session, seq, previous, stream.seen, 0, 0, 0, 0, 0, 0,
            is_previous_answered, 0) + command))

    def ask(self, key):
        (session, instrument), stream = key, self.streams[key]
        stream.asked_at = time.monotonic()
        asked = struct.pack("<IIQHH", instrument, session, stream.seen, 0, 0)
        self.link.socket.sendall(frame(RESEND_REQUEST, asked))

    def ask_all(self):
        for key in [key for key, stream in self.streams.items() if stream.last]:
            self.ask(key)

    def order(self, key):
        """Sends the next order: session 1 buys, session 2 sells, one lot at 100."""
        stream, session = self.streams[key], key[0]
        self.sequences[session] = seq = self.sequences[session] + 1
        self.sent += 1
        command = b"\0" + struct.pack("<QqqQQQQIBBBBBBBH", session << 32 | seq, 100, 0, 1, 0, 0, 0,
                                      session, session - 1, 0, 1, 0, 0, 0, 0, 0)
        stream.unanswered[seq] = (stream.last, command)
        stream.last = seq
        self.send(key, seq, len(stream.unanswered) == 1)

    def accept(self, key, previous, data, has_gap=False):
        stream = self.streams[key]
        assert not has_gap, "events are lost"
        if previous > stream.seen:
            return None if stream.asked_at else self.ask(key)
        while data:
            event, data = data[:1 + EVENT_BYTES[data[0]]], data[1 + EVENT_BYTES[data[0]]:]
            previous += 1
            if previous > stream.seen:
                stream.seen = previous
                stream.events.append(event)

    def handle(self, kind, message):
        if kind == GO_AWAY:
            raise ConnectionError("the gateway leaves")
        if kind == EVENTS_LOST:
            self.ask_all()
        if kind not in (REPLY, PRIVATE, RESENT, REFUSED):
            return
        instrument, session, seq = struct.unpack_from("<IIQ", message)
        key = session, instrument
        stream = self.streams[key]
        if kind == PRIVATE:
            self.accept(key, struct.unpack_from("<Q", message, 16)[0], message[29:])
        elif kind == RESENT:
            self.accept(key, seq, message[33:], message[32])
            stream.asked_at = 0
        elif kind == REFUSED:
            self.refused += 1
        else:
            output, previous = struct.unpack_from("<QQ", message, 16)
            self.accept(key, previous, message[58:])
            if stream.unanswered.pop(seq, None):
                self.answers.append((instrument, output))
                self.repeated += message[56]
                if len(self.answers) == self.requests // 2:
                    print("half", flush=True)

    def turn(self):
        try:
            for key, stream in self.streams.items():
                if len(stream.unanswered) < IN_FLIGHT_MAX and self.sent < self.requests:
                    self.order(key)
                if stream.asked_at and time.monotonic() - stream.asked_at > 1:
                    self.ask(key)
            self.handle(*(self.link.next(0.01) or (0, b"")))
        except OSError:
            self.connect()

    def run(self):
        self.connect()
        while len(self.answers) < self.requests:
            self.turn()
        self.ask_all()
        while any(stream.asked_at for stream in self.streams.values()):
            self.turn()
        count = lambda stream, kind: sum(event[0] == kind for event in stream.events)
        streams = [{"accepted": count(it, ACCEPTED), "traded": count(it, TRADED),
                    "events": len(it.events), "last": it.seen} for it in self.streams.values()]
        return {"answers": self.answers, "repeated": self.repeated, "links": self.links,
                "refused": self.refused, "streams": streams}

digest, requests, keys, *addresses = sys.argv[1:]
lines = [] if keys == "-" else [line.split() for line in open(keys, encoding="ascii")]
keys = {int(line[1]): bytes.fromhex(line[2]) for line in lines if line[0] == "session"}
print(json.dumps(Client(int(digest, 16), int(requests), keys, addresses).run()))
