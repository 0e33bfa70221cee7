//! What a session's request may do.

use nm_book::order::{Command, Event, NewOrder, RejectReason, UserId};
use nm_wire::{Breach, Request};

/// The session that carries out what operators direct: the leaders of cells make its requests, and
/// no client may have it. As the [`OPERATOR`] it commands the exchange, and cancels the orders of
/// any session.
pub const DESK: UserId = UserId::MAX;

/// The session that may command the exchange itself: halts, auctions, price bands, end of the day.
pub const OPERATOR: UserId = 0;

/// The command as its session may give it: an order belongs to the session that sends it, whatever
/// user it names, only the operator commands the exchange itself, and no order breaks a rule of the
/// instrument master.
///
/// # Errors
/// The rejection of a command that the session may not give.
pub(super) fn authorized_command(request: &Request) -> Result<Command, Event> {
    let user = request.session;
    if let Some(breach) = request.breach()
        && matches!(request.command, Command::New(_) | Command::Replace { .. })
    {
        let reason = match breach {
            Breach::NotListed => RejectReason::NotListed,
            Breach::OutsideCollar => RejectReason::OutsideCollar,
            Breach::TooLarge => RejectReason::TooLarge,
        };
        return Err(rejection(request, reason));
    }
    Ok(match request.command {
        Command::New(order) => Command::New(NewOrder { user, ..order }),
        Command::Replace { id, price, quantity, .. } => {
            Command::Replace { id, user, price, quantity }
        }
        Command::Cancel { id, .. } => Command::Cancel { id, user },
        Command::MassCancel { user: whose } if user == DESK => Command::MassCancel { user: whose },
        Command::MassCancel { .. } => Command::MassCancel { user },
        Command::Tick => Command::Tick,
        command if user == OPERATOR || user == DESK => command,
        _ => return Err(rejection(request, RejectReason::NotAllowed)),
    })
}

/// Whether an event is sent to all clients: they learn what concerns the market, and not whose
/// orders trade or are cancelled.
#[inline]
pub fn is_broadcast(event: &Event) -> bool {
    event.users() == [None, None]
}

/// The event of the rejection of a request.
pub fn rejection(request: &Request, reason: RejectReason) -> Event {
    let id = match request.command {
        Command::New(NewOrder { id, .. })
        | Command::Replace { id, .. }
        | Command::Cancel { id, .. } => id,
        _ => 0,
    };
    Event::rejected(id, request.session, reason)
}
