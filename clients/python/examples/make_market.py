"""Makes a market: a bid and an ask around a price. After a fill it cancels what is left of both,
moves its price against its position and quotes again. It ends after so many lots were filled.

usage: make_market.py SESSION INSTRUMENT STATE FILLS KEYS-OR-DASH GATEWAY..."""

import sys

from nearmetal_client import Client, Event, UsedBefore

MIDDLE, LOTS = 1000, 5


class Maker:
    """Two quotes, and what was traded."""

    def __init__(self, client, instrument):
        self.client, self.instrument = client, instrument
        self.position = self.filled = 0

    def prices(self):
        """Where it buys and sells."""
        price = MIDDLE - self.position // 10
        return {"buy": price - 1, "sell": price + 1}

    def quote(self):
        """Quotes on each side that has no order."""
        quoted = {order.side for order in self.client.orders(self.instrument).values()}
        for side, price in self.prices().items():
            if side not in quoted:
                self.client.order(self.instrument, side, price, LOTS)

    def requote(self):
        """Cancels the orders whose price is not the present one."""
        for key, order in self.client.orders(self.instrument).items():
            if order.price != self.prices()[order.side]:
                self.client.cancel(self.instrument, key)

    def handle(self, happened):
        """Handles what has happened."""
        print(happened, flush=True)
        if isinstance(happened, UsedBefore):
            self.client.take_over(self.instrument)
            self.client.cancel_all(self.instrument)
        if isinstance(happened, Event) and happened.name == "traded":
            order = self.client.orders(self.instrument).get(happened.fields["maker"])
            if order:
                lots = happened.fields["quantity"]
                self.position += lots if order.side == "buy" else -lots
                self.filled += lots
                self.requote()


def main(session, instrument, state, fills, keys, *gateways):
    """Makes the market until so many lots were filled."""
    client = Client(list(gateways), int(session), state, None if keys == "-" else keys)
    maker = Maker(client, int(instrument))
    while maker.filled < int(fills):
        happened = client.next(0.2)
        if happened:
            maker.handle(happened)
        maker.quote()
    client.cancel_all(maker.instrument)
    while happened := client.next(1.5):
        maker.handle(happened)
    print(f"filled {maker.filled} links {client.links}")


main(*sys.argv[1:])
