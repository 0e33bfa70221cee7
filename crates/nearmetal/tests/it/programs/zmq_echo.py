"""ZeroMQ over TCP, one server for clients of each pattern: `zmq_echo.py ROLE PORT`."""

import hashlib
import sys
import threading
import time

import zmq

HOST = "tcp://127.0.0.1"
CONTEXT = zmq.Context()


def message(number, longest=3000):
    return bytes([number & 255]) * (1 + number * 37 % longest)


def bound(kind):
    """A socket on a free port, and the port."""
    made = CONTEXT.socket(kind)
    # A publisher drops what a slow subscriber has no room for, unless the queue has no limit.
    made.set_hwm(0)
    return made, made.bind_to_random_port(HOST)


def connected(kind, port):
    made = CONTEXT.socket(kind)
    made.connect(f"{HOST}:{port}")
    return made


def serve(port):
    """Answers requests: `port NAME` with the port of another pattern, all else with an echo."""
    pull, pull_port = bound(zmq.PULL)
    publisher, publisher_port = bound(zmq.XPUB)
    router, router_port = bound(zmq.ROUTER)
    ports = {b"pull": pull_port, b"publisher": publisher_port, b"router": router_port}
    for target, argument in ((count_pulled, pull), (publish, publisher), (route, router)):
        threading.Thread(target=target, args=(argument,), daemon=True).start()
    replies = CONTEXT.socket(zmq.REP)
    replies.bind(f"{HOST}:{port}")
    while True:
        parts = replies.recv_multipart()
        if parts[0] == b"port":
            replies.send(b"%d" % ports[parts[1]])
        else:
            replies.send_multipart(parts[::-1])


def count_pulled(pull):
    """The parts up to an empty one are a batch; its sum goes to the address in that message."""
    while True:
        digest = hashlib.sha256()
        while len(parts := pull.recv_multipart()) == 1:
            digest.update(parts[0])
        back = connected(zmq.PUSH, int(parts[1]))
        back.send(digest.hexdigest().encode())
        back.close(linger=-1)


def publish(publisher):
    """Each subscription is answered by the messages of its topic and an end."""
    while True:
        event = publisher.recv()
        if event[0] == 1:
            topic = event[1:]
            for number in range(20_000):
                publisher.send_multipart([topic, message(number, 200)])
            publisher.send_multipart([topic, b"end", b""])


def route(router):
    while True:
        router.send_multipart(router.recv_multipart())


def port_of(requests, name):
    requests.send_multipart([b"port", name])
    return int(requests.recv())


def request(port):
    requests = connected(zmq.REQ, port)
    digest = hashlib.sha256()
    for number in range(3000):
        parts = [b"echo"] + [message(number + part) for part in range(number % 4)]
        requests.send_multipart(parts)
        got = requests.recv_multipart()
        assert got == parts[::-1], f"request {number}"
        digest.update(b"".join(got))
    requests.send_multipart([b"echo", b"z" * 20_000_000])
    digest.update(requests.recv_multipart()[0])
    print("request", digest.hexdigest())


def pipeline(port):
    push = connected(zmq.PUSH, port_of(connected(zmq.REQ, port), b"pull"))
    answers, answer_port = bound(zmq.PULL)
    for size in (100, 50_000):
        for number in range(20_000 if size == 100 else 1000):
            push.send(message(number, size))
        push.send_multipart([b"", b"%d" % answer_port])
        print("pipeline", size, answers.recv().decode())


def subscribe(port):
    publisher = port_of(connected(zmq.REQ, port), b"publisher")
    subscriber = CONTEXT.socket(zmq.SUB)
    subscriber.set_hwm(0)
    subscriber.connect(f"{HOST}:{publisher}")
    topic = b"topic"
    subscriber.subscribe(topic)
    digest = hashlib.sha256()
    count = 0
    while len(parts := subscriber.recv_multipart()) == 2:
        assert parts[0] == topic
        count += 1
        digest.update(parts[1])
    print("published", count, digest.hexdigest())


def dealers(port):
    """Several sockets in one poll, with many messages under way on each."""
    router = port_of(connected(zmq.REQ, port), b"router")
    sockets = [connected(zmq.DEALER, router) for _ in range(10)]
    poller = zmq.Poller()
    digests = {}
    for index, one in enumerate(sockets):
        poller.register(one, zmq.POLLIN)
        digests[one] = [index, 0, hashlib.sha256()]
        for number in range(20):
            one.send(message(number))
    while any(count < 600 for _, count, _ in digests.values()):
        for one, _ in poller.poll():
            state = digests[one]
            got = one.recv()
            state[1] += 1
            state[2].update(got)
            if state[1] <= 580:
                one.send(message(state[1]))
    for index, count, digest in digests.values():
        print("dealer", index, count, digest.hexdigest())


def rate(port, seconds=1.0):
    """Requests a second."""
    requests = connected(zmq.REQ, port)
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        requests.send_multipart([b"echo", bytes(64)])
        requests.recv_multipart()
        count += 1
    print(count / (time.monotonic() - begin))


def push_rate(port):
    """Messages a second in one direction."""
    push = connected(zmq.PUSH, port_of(connected(zmq.REQ, port), b"pull"))
    answers, answer_port = bound(zmq.PULL)
    begin, count = time.monotonic(), 200_000
    for _ in range(count):
        push.send(bytes(64))
    push.send_multipart([b"", b"%d" % answer_port])
    answers.recv()
    print(count / (time.monotonic() - begin))


ROLES = {
    "server": serve,
    "request": request,
    "pipeline": pipeline,
    "publish": subscribe,
    "dealers": dealers,
    "rate": rate,
    "push-rate": push_rate,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](int(sys.argv[2]))
