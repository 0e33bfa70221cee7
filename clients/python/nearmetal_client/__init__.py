"""A trading client of the exchange of nearmetal, as docs/wire.md describes it.

`Client` connects to one of several gateways, sends requests, and gives each event once, whatever
dies. A new order is never taken for an old one: see `Client.take_over`.
"""

from .client import Client, Refusal, gateways_of
from .session import (CANCEL_REASONS, REFUSAL_REASONS, REJECT_REASONS, Event, EventsLost, Happened,
                      Order, Refused, Session, SessionPosition, UsedBefore)
from .state import StateError

__all__ = ["CANCEL_REASONS", "REFUSAL_REASONS", "REJECT_REASONS", "Client", "Event", "EventsLost",
           "Happened", "Order", "Refusal", "Refused", "Session", "SessionPosition", "StateError", "UsedBefore", "gateways_of"]
