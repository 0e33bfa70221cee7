"""A gRPC server and its clients without generated code: `grpc_echo.py ROLE PORT`.

Messages are bytes as they are, so neither a compiler of interfaces nor its output is needed.
"""

import asyncio
import hashlib
import sys
import time
from concurrent import futures

import grpc

HOST = "127.0.0.1"


def message(number, longest=3000):
    return bytes([number & 255]) * (1 + number * 37 % longest)


def unary(request, _context):
    return request[::-1]


def server_stream(request, _context):
    for number in range(int(request)):
        yield message(number)


def client_stream(requests, _context):
    digest = hashlib.sha256()
    for request in requests:
        digest.update(request)
    return digest.hexdigest().encode()


def both_streams(requests, _context):
    for request in requests:
        yield request.upper()


def serve(port):
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
        "ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
        "BothStreams": grpc.stream_stream_rpc_method_handler(both_streams),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    server.add_insecure_port(f"{HOST}:{port}")
    server.start()
    server.wait_for_termination()


def channel(port):
    return grpc.insecure_channel(f"{HOST}:{port}")


def call_unary(port, count=1500, size=3000):
    digest = hashlib.sha256()
    with channel(port) as opened:
        call = opened.unary_unary("/test.Echo/Unary")
        for number in range(count):
            sent = message(number, size)
            got = call(sent)
            assert got == sent[::-1], f"call {number}"
            digest.update(got)
    print("unary", digest.hexdigest())


def call_streams(port):
    with channel(port) as opened:
        digest = hashlib.sha256()
        for part in opened.unary_stream("/test.Echo/ServerStream")(b"3000"):
            digest.update(part)
        print("from the server", digest.hexdigest())
        blocks = (message(number, 60_000) for number in range(400))
        answer = opened.stream_unary("/test.Echo/ClientStream")(blocks)
        print("to the server", answer.decode())
        digest = hashlib.sha256()
        count = 0
        texts = (b"line %d" % number * (number % 50) for number in range(2000))
        for part in opened.stream_stream("/test.Echo/BothStreams")(texts):
            digest.update(part)
            count += 1
        print("both", count, digest.hexdigest())


def call_many(port):
    """Calls that are under way at the same time over one connection and over several."""
    for channels in (1, 6):
        opened = [channel(port) for _ in range(channels)]
        calls = [one.unary_unary("/test.Echo/Unary") for one in opened]
        waiting = [calls[number % channels].future(message(number)) for number in range(600)]
        digest = hashlib.sha256()
        for future in waiting:
            digest.update(future.result())
        for one in opened:
            one.close()
        print("at once", channels, digest.hexdigest())


async def call_asyncio(port):
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as opened:
        call = opened.unary_unary("/test.Echo/Unary")
        answers = await asyncio.gather(*(call(message(number)) for number in range(300)))
        digest = hashlib.sha256(b"".join(answers)).hexdigest()
        parts = [part async for part in opened.unary_stream("/test.Echo/ServerStream")(b"500")]
        print("asyncio", digest, len(parts), hashlib.sha256(b"".join(parts)).hexdigest())


def long_stream(port):
    """One stream in both directions, a message at a time."""
    digest = hashlib.sha256()
    with channel(port) as opened:
        sent = (message(number) for number in range(6000))
        for part in opened.stream_stream("/test.Echo/BothStreams")(sent):
            digest.update(part)
    print("long stream", digest.hexdigest())


def rate(port, seconds=1.0):
    """Unary calls a second."""
    with channel(port) as opened:
        call = opened.unary_unary("/test.Echo/Unary")
        call(bytes(64))
        begin, count = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            call(bytes(64))
            count += 1
        print(count / (time.monotonic() - begin))


def stream_rate(port):
    """Messages a second of a stream from the server."""
    with channel(port) as opened:
        call = opened.unary_stream("/test.Echo/ServerStream")
        begin = time.monotonic()
        count = sum(1 for _ in call(b"20000"))
        print(count / (time.monotonic() - begin))


ROLES = {
    "server": serve,
    "unary": call_unary,
    "streams": call_streams,
    "many": call_many,
    "asyncio": lambda port: asyncio.run(call_asyncio(port)),
    "long-unary": lambda port: call_unary(port, 5000),
    "long-stream": long_stream,
    "rate": rate,
    "stream-rate": stream_rate,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](int(sys.argv[2]))
