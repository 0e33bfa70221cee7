"""From nothing to a fill: one session buys, another one sells. usage: first_fill.py NETWORK-FILE"""

import sys

from nearmetal_client import Client, gateways_of

INSTRUMENT, BUYER, SELLER = 1000, 9001, 9002


def until(name, client, wanted):
    """Prints what happens until an event of this name."""
    while True:
        happened = client.next(10)
        print(name, happened)
        if happened is None or getattr(happened, "name", None) == wanted:
            return


gateways = gateways_of(sys.argv[1])
buyer, seller = Client(gateways, BUYER), Client(gateways, SELLER)
buyer.order(INSTRUMENT, "buy", 1025, 100)
until("buyer", buyer, "accepted")
seller.order(INSTRUMENT, "sell", 1025, 40)
until("seller", seller, "traded")
until("buyer", buyer, "traded")
