"""A wire between two network namespaces that delays each packet.

delay_line.py SECONDS COUNTS (PID NAME ROUTE) (PID NAME ROUTE)

Makes a TUN device NAME in the network namespace of each process PID, for packets to ROUTE, and
passes packets from one to the other. Not every kernel has netem. Ends when its input does, and
writes how many packets it has passed on to the file COUNTS then.
"""

import collections
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000


def device(pid, name, route):
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    subprocess.run(["ip", "route", "add", route, "dev", name], check=True)
    return tun


def main():
    delay_s, counts = float(sys.argv[1]), sys.argv[2]
    ends = [device(*sys.argv[3:6]), device(*sys.argv[6:9])]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting, passed = collections.deque(), 0
    print("ready", flush=True)
    while True:
        wait_s = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([*ends, sys.stdin], [], [], wait_s)
        if sys.stdin in readable:
            break
        for end in readable:
            waiting.append((time.monotonic() + delay_s, other[end], os.read(end, 65536)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, packet = waiting.popleft()
            os.write(end, packet)
            passed += 1
    with open(counts, "w", encoding="ascii") as file:
        file.write(str(passed))


main()
