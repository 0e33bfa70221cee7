"""Initiators of asyncfix: two clients trade, one loses its connection, misses a fill, and recovers
it by a resend. Usage: initiator.py PORT"""

import asyncio
import datetime
import sys

from asyncfix import FIXMessage, FMsg, FTag
from asyncfix.connection import ConnectionState
from asyncfix.connection_client import AsyncFIXClient
from asyncfix.journaler import Journaler
from asyncfix.protocol import FIXProtocol44

LIMIT_S = 20


class Client(AsyncFIXClient):
    """A client that keeps the reports of its orders."""

    def __init__(self, name, port):
        super().__init__(FIXProtocol44(), name, "NEARMETAL", Journaler(), "127.0.0.1", port)
        self.reports = []

    async def on_connect(self):
        await self.send_msg(FIXMessage(FMsg.LOGON, {98: 0, 108: 30}))

    async def on_message(self, msg):
        self.reports.append(msg)

    async def on_logon(self, is_healthy):
        pass

    async def on_logout(self, msg):
        pass

    async def on_disconnect(self):
        pass

    async def on_state_change(self, connection_state):
        pass

    async def should_replay(self, historical_replay_msg):
        return True

    async def log_on(self):
        await self.connect()
        await until(lambda: self.connection_state == ConnectionState.ACTIVE, "a logon")

    async def order(self, client_id, side, quantity):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H:%M:%S")
        fields = {11: client_id, 55: "PYTHON", 54: side, 38: quantity, 40: 2, 44: "10.25", 60: now}
        await self.send_msg(FIXMessage(FMsg.NEWORDERSINGLE, fields))

    def found(self, client_id, kind):
        is_it = lambda report: (report[FTag.ClOrdID], report[FTag.ExecType]) == (client_id, kind)
        return [report for report in self.reports if is_it(report)]


async def until(condition, what):
    for _ in range(LIMIT_S * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise SystemExit(f"no {what}")


async def main():
    port = int(sys.argv[1])
    carol, dave = Client("CAROL", port), Client("DAVE", port)
    await carol.log_on()
    await dave.log_on()
    await carol.order("c1", 1, 100)
    await until(lambda: carol.found("c1", "0"), "report that c1 is new")
    await dave.order("d1", 2, 40)
    await until(lambda: dave.found("d1", "F") and carol.found("c1", "F"), "fill")
    assert carol.found("c1", "F")[0][FTag.LastPx] == "10.25"
    await carol.disconnect(ConnectionState.DISCONNECTED_BROKEN_CONN)
    await dave.order("d2", 2, 60)
    await until(lambda: dave.found("d2", "F"), "second fill")
    await carol.connect()
    await until(lambda: len(carol.found("c1", "F")) == 2, "fill by a resend")
    rest = carol.found("c1", "F")[1]
    assert (rest[FTag.PossDupFlag], rest[FTag.LeavesQty]) == ("Y", "0"), rest
    for client in (carol, dave):
        await client.disconnect(ConnectionState.DISCONNECTED_WCONN_TODAY, logout_message="")
    print("done")


asyncio.run(main())
