"""Echo servers and clients in the ways that Python offers: `echo.py SCENARIO PORT`."""

import array
import asyncio
import hashlib
import http.client
import http.server
import multiprocessing
import os
import select
import selectors
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request

HOST = "127.0.0.1"


def messages(rounds, seed=0):
    for number in range(rounds):
        size = 1 + (number * 37 + seed) % 3000
        yield bytes([(number + seed) & 255]) * size


def receive_exactly(connection, size):
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise EOFError(f"{size} bytes are missing")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def exchange(port, rounds=500, seed=0, bulk=2_000_000):
    """A ping-pong, then much in both directions at once, then a half-close and the end."""
    digest = hashlib.sha256()
    with socket.create_connection((HOST, port)) as connection:
        for message in messages(rounds, seed):
            connection.sendall(message)
            digest.update(receive_exactly(connection, len(message)))
        block = bytes(range(256)) * (bulk // 256)
        sender = threading.Thread(target=connection.sendall, args=(block,))
        sender.start()
        digest.update(receive_exactly(connection, len(block)))
        sender.join()
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"", "data after the end"
    return digest.hexdigest()


# Servers. Each echoes until the other end has finished.


def echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def listener(port):
    made = socket.create_server((HOST, port), backlog=64)
    return made


def thread_server(port):
    with listener(port) as listening:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()


def fork_server(port):
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            echo(self.request)

    class Server(socketserver.ForkingTCPServer):
        allow_reuse_address = True
        request_queue_size = 64

    with Server((HOST, port), Handler) as server:
        server.serve_forever(poll_interval=0.05)


def selector_server(port, kind):
    chooser = kind()
    with listener(port) as listening:
        listening.setblocking(False)
        chooser.register(listening, selectors.EVENT_READ, None)
        while True:
            for key, events in chooser.select():
                if key.data is None:
                    connection, _ = key.fileobj.accept()
                    connection.setblocking(False)
                    chooser.register(connection, selectors.EVENT_READ, bytearray())
                    continue
                serve_ready(chooser, key, events)


def serve_ready(chooser, key, events):
    connection, waiting = key.fileobj, key.data
    if events & selectors.EVENT_READ:
        data = connection.recv(65536)
        if not data and not waiting:
            chooser.unregister(connection)
            connection.close()
            return
        waiting += data
    if waiting:
        try:
            sent = connection.send(waiting)
            del waiting[:sent]
        except BlockingIOError:
            pass
    wanted = selectors.EVENT_READ if len(waiting) < 1 << 20 else 0
    wanted |= selectors.EVENT_WRITE if waiting else 0
    chooser.modify(connection, wanted, waiting)


def pool_server(port):
    """One process accepts, takes the first bytes, and hands the socket to another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    if os.fork() == 0:
        ours.close()
        while True:
            first, descriptors, _, _ = socket.recv_fds(theirs, 65536, 1)
            connection = socket.socket(fileno=descriptors[0])
            connection.sendall(first)
            threading.Thread(target=echo, args=(connection,), daemon=True).start()
    theirs.close()
    with listener(port) as listening:
        while True:
            connection, _ = listening.accept()
            # Long enough that an accelerator has met the peer when the socket is handed on.
            for _ in range(100):
                connection.sendall(connection.recv(65536))
            socket.send_fds(ours, [connection.recv(65536)], [connection.fileno()])
            connection.close()


async def asyncio_serve(port):
    async def handle(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, HOST, port)
    async with server:
        await server.serve_forever()


def starting_server(port):
    """Each connection is asked for the sum of each line, and a program of its own computes it."""

    def serve(connection):
        connection.set_inheritable(True)
        with connection, connection.makefile("rwb", 0) as lines:
            for number, line in enumerate(lines):
                if number % 500 == 0:
                    answer = subprocess.run(
                        ["sed", "s/^/by a program: /"],
                        input=line,
                        stdout=subprocess.PIPE,
                        close_fds=False,
                        check=True,
                    ).stdout
                else:
                    answer = b"by the server: " + line
                connection.sendall(answer)

    with listener(port) as listening:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


class Files(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        size = int(self.path.strip("/"))
        body = bytes([size & 255]) * size
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


# Clients.


def thread_client(port):
    results = {}

    def one(seed):
        results[seed] = exchange(port, 200, seed)

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in sorted(results):
        print(seed, results[seed])


def one_process(task):
    port, seed = task
    return exchange(port, 200, seed)


def process_client(port):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        for line in pool.map(one_process, [(port, seed) for seed in range(8)]):
            print(line)


async def asyncio_exchange(port, seed):
    digest = hashlib.sha256()
    reader, writer = await asyncio.open_connection(HOST, port)
    for message in messages(200, seed):
        writer.write(message)
        digest.update(await reader.readexactly(len(message)))
    block = bytes(range(256)) * 8000
    writer.write(block)
    digest.update(await reader.readexactly(len(block)))
    writer.write_eof()
    assert await reader.read() == b"", "data after the end"
    writer.close()
    await writer.wait_closed()
    return digest.hexdigest()


async def asyncio_client(port):
    for line in await asyncio.gather(*(asyncio_exchange(port, seed) for seed in range(20))):
        print(line)


def file_client(port):
    """Lines through a file object: what printf and fgets are elsewhere."""
    digest = hashlib.sha256()
    with socket.create_connection((HOST, port)) as connection:
        with connection.makefile("rw", newline="\n") as lines:
            for number in range(1000):
                lines.write(f"line {number} of a conversation\n")
                lines.flush()
                digest.update(lines.readline().encode())
    print(digest.hexdigest())


def measuring_loop(connection, rounds):
    """Ping-pong of small messages, as a latency tool does."""
    digest = hashlib.sha256()
    for number in range(rounds):
        message = number.to_bytes(8, "little") * 8
        connection.sendall(message)
        digest.update(receive_exactly(connection, len(message)))
    return digest.hexdigest()


def system_client(port):
    with socket.create_connection((HOST, port)) as connection:
        connection.set_inheritable(True)
        for _ in range(5):
            assert os.system("uname -a > /dev/null") == 0
        print(measuring_loop(connection, 100_000))


def loop_client(port):
    with socket.create_connection((HOST, port)) as connection:
        print(measuring_loop(connection, 100_000))


def children_client(port):
    """All ways to start a program, each between two loops of one connection."""

    def spawn():
        pid = os.posix_spawn("/bin/true", ["true"], {**os.environ})
        assert os.waitpid(pid, 0)[1] == 0

    def fork():
        pid = os.fork()
        if pid == 0:
            os.execv("/bin/true", ["true"])
        assert os.waitpid(pid, 0)[1] == 0

    def daemon():
        assert os.system("(sleep 0.2 &)") == 0
        # As long as it lives, the kernel carries the connection that it inherited.
        time.sleep(0.3)

    starts = [
        lambda: os.popen("uname").read(),
        lambda: subprocess.run(["true"], close_fds=False, check=True),
        spawn,
        fork,
        daemon,
    ]
    with socket.create_connection((HOST, port)) as connection:
        connection.set_inheritable(True)
        for start in starts:
            start()
            print(measuring_loop(connection, 20_000))


def rate_client(port, seconds=1.0):
    """Round trips a second."""
    with socket.create_connection((HOST, port)) as connection:
        measuring_loop(connection, 1000)
        begin, count = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            measuring_loop(connection, 100)
            count += 100
        print(count / (time.monotonic() - begin))


async def asyncio_rate(port, connections, seconds=1.0):
    """Round trips a second of several connections together."""

    async def one():
        reader, writer = await asyncio.open_connection(HOST, port)
        count = 0
        while time.monotonic() - begin < seconds:
            writer.write(bytes(64))
            await reader.readexactly(64)
            count += 1
        writer.close()
        return count

    begin = time.monotonic()
    counts = await asyncio.gather(*(one() for _ in range(connections)))
    print(sum(counts) / (time.monotonic() - begin))


def some_clients(port):
    def one(seed):
        digest = hashlib.sha256()
        with socket.create_connection((HOST, port)) as connection:
            with connection.makefile("rwb", 0) as lines:
                for number in range(3000):
                    lines.write(b"line %d of %d\n" % (number, seed))
                    digest.update(lines.readline())
        results[seed] = digest.hexdigest()

    results = {}
    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in sorted(results):
        print(seed, results[seed])


def many_client(port, count=400):
    """Connections that are open at the same time, and all of them in use."""
    digest = hashlib.sha256()
    connections = []
    for _ in range(count):
        connections.append(socket.create_connection((HOST, port)))
        # Long enough that an accelerator has met the peer before the next client comes.
        digest.update(measuring_loop(connections[-1], 50).encode())
    for number in range(40):
        for index, connection in enumerate(connections):
            connection.sendall(b"%d" % index + bytes([number]) * 300)
        for index, connection in enumerate(connections):
            message = b"%d" % index + bytes([number]) * 300
            got = receive_exactly(connection, len(message))
            assert got == message, f"connection {index}, message {number}"
            digest.update(got)
    for connection in connections:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"", "data after the end"
        connection.close()
    print(count, digest.hexdigest())


def http_client(port):
    for size in (0, 1, 1400, 70_000, 5_000_000):
        with urllib.request.urlopen(f"http://{HOST}:{port}/{size}") as answer:
            body = answer.read()
            assert body == bytes([size & 255]) * size, f"body of {len(body)} bytes"
            print(answer.status, len(body))
    connection = http.client.HTTPConnection(HOST, port)
    for size in (1, 3000, 2_000_000):
        connection.request("POST", "/", body=b"p" * size)
        print(connection.getresponse().read().decode())
    connection.close()


def itself(_port):
    """Both ends in one thread: nothing may wait for the other end to act."""
    with socket.create_server((HOST, 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    digest = hashlib.sha256()
    for message in messages(2000):
        near.sendall(message)
        digest.update(receive_exactly(far, len(message)))
        far.sendall(message[::-1])
        digest.update(receive_exactly(near, len(message)))
    count = array.array("i", [0])
    near.sendall(b"counted")
    select.select([far], [], [], 5)
    import fcntl
    import termios

    fcntl.ioctl(far, termios.FIONREAD, count, True)
    print("unread", count[0], far.recv(100, socket.MSG_PEEK), far.recv(100))
    near.setblocking(False)
    sent = 0
    try:
        while True:
            sent += near.send(b"f" * 10_000)
    except BlockingIOError:
        pass
    assert sent > 0
    assert receive_exactly(far, sent) == b"f" * sent, "filled and drained"
    near.close()
    print("end", far.recv(1))
    far.close()
    print(digest.hexdigest())


SCENARIOS = {
    "asyncio-server": lambda port: asyncio.run(asyncio_serve(port)),
    "asyncio-client": lambda port: asyncio.run(asyncio_client(port)),
    "blocking-client": lambda port: print(exchange(port)),
    "thread-server": thread_server,
    "thread-client": thread_client,
    "fork-server": fork_server,
    "process-client": process_client,
    "file-client": file_client,
    "system-client": system_client,
    "loop-client": loop_client,
    "children-client": children_client,
    "starting-server": starting_server,
    "some-clients": some_clients,
    "many-client": many_client,
    "rate-client": rate_client,
    "asyncio-rate-client": lambda port: asyncio.run(asyncio_rate(port, 20)),
    "select-server": lambda port: selector_server(port, selectors.SelectSelector),
    "poll-server": lambda port: selector_server(port, selectors.PollSelector),
    "epoll-server": lambda port: selector_server(port, selectors.EpollSelector),
    "pool-server": pool_server,
    "http-server": lambda port: http.server.ThreadingHTTPServer((HOST, port), Files).serve_forever(),
    "http-client": http_client,
    "itself": itself,
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](int(sys.argv[2]))
