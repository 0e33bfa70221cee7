//! Whether orders that were executed obeyed the instrument master, and what operators have decided
//! on owners and firms. They are read here once more, by no code of gateways and cells.

use std::collections::BTreeMap;
use std::sync::Arc;

use nm_book::order::{Command, Event, OrderType};
use nm_exchange::master::Master;
use nm_load::log::RequestId;
use nm_wire::{FirmRecord, FirmTable, Firms, Frame, Kind, Owner, Request, StopOrder};

use crate::findings::{Findings, Violation};

/// The rules that the network began with, and what broke them.
#[derive(Debug, Default)]
pub struct Rules {
    master: Option<Arc<Master>>,
    /// Orders that were executed though they break them, and that no gateway has marked.
    passed: u64,
    /// What operators have decided on owners in this cell, the highest number of each.
    decided: BTreeMap<Owner, (u64, bool)>,
    /// The firms of the highest version.
    firms: FirmTable,
}

impl Rules {
    /// Those of a network.
    pub fn of(master: Option<Arc<Master>>) -> Rules {
        Rules { master, ..Rules::default() }
    }

    /// Whether an event shows that an order or its replacement took effect.
    pub fn is_effect(event: &Event) -> bool {
        matches!(event, Event::Accepted { .. } | Event::Replaced { .. } | Event::Traded { .. })
    }

    /// An operator has stopped an owner, or lets it send orders again.
    pub fn decided(&mut self, order: StopOrder) {
        let known = self.decided.entry(order.owner).or_default();
        *known = (*known).max((order.version, order.is_stopped));
    }

    /// An entry of the log was carried out that is no request.
    pub fn logged(&mut self, frame: Frame<'_>) {
        if frame.kind() == Kind::Firms
            && let Ok(Firms { table, .. }) = frame.read()
        {
            self.firms(table);
        }
    }

    /// There are other firms.
    pub fn firms(&mut self, table: FirmTable) {
        if table.version > self.firms.version {
            self.firms = table;
        }
    }

    /// How a new order breaks the limits of an order of its firm, if it does.
    fn broken_limit(&self, request: &Request) -> Option<String> {
        let Command::New(order) = request.command else { return None };
        let has_session = |firm: &&FirmRecord| {
            let session = request.session;
            firm.sessions.iter().any(|it| it.first <= session && session <= it.last)
        };
        let FirmRecord { name, limits, .. } = self.firms.firms.iter().find(has_session)?;
        let is_limit = matches!(order.order_type, OrderType::Limit | OrderType::StopLimit);
        let value = u128::from(order.price.unsigned_abs()) * u128::from(order.quantity);
        let most = |limit: Option<u64>| limit.map_or(u128::MAX, u128::from);
        if u128::from(order.quantity) > most(limits.order_quantity) {
            Some(format!("of {} lots, above the limit of firm {name}", order.quantity))
        } else if is_limit && value > most(limits.order_value).min(most(limits.value)) {
            Some(format!("of value {value}, above the limit of firm {name}"))
        } else if !is_limit && limits.order_value.or(limits.value).is_some() {
            Some(format!("without a limit price, though firm {name} has a limit of value"))
        } else {
            None
        }
    }

    /// A request was executed in a batch, with such events or without.
    pub fn executed(
        &mut self,
        request: &Request,
        has_effect: bool,
        index: u64,
        findings: &mut Findings,
    ) {
        if !has_effect {
            return;
        }
        let is_new = matches!(request.command, Command::New(_) | Command::Replace { .. });
        if is_new && self.decided.get(&request.owner).is_some_and(|(_, is_stopped)| *is_stopped) {
            let Request { instrument, session, client_seq, owner, .. } = *request;
            let name = RequestId { instrument, session, client_seq };
            findings.add(Violation::RuleBroken, || {
                format!("batch {index} has {name} of {owner}, which an operator had stopped")
            });
        } else if let Some(why) = self.broken_limit(request) {
            let Request { instrument, session, client_seq, .. } = *request;
            let name = RequestId { instrument, session, client_seq };
            findings.add(Violation::RuleBroken, || format!("batch {index} has {name} {why}"));
        } else if request.breach != 0 {
            let Request { instrument, session, client_seq, breach, .. } = *request;
            let name = RequestId { instrument, session, client_seq };
            findings.add(Violation::RuleBroken, || {
                format!(
                    "batch {index} has {name}, which breaks rule {breach} of the instrument master"
                )
            });
        } else if self.is_broken_by(request) {
            self.passed += 1;
        }
    }

    fn is_broken_by(&self, request: &Request) -> bool {
        let Some(master) = &self.master else { return false };
        let Some(listed) = master.listings().find(|it| it.instrument == request.instrument) else {
            return true;
        };
        let is_outside = |price: i64| price < listed.low || price > listed.high;
        match request.command {
            Command::New(order) => {
                let is_limit = matches!(order.order_type, OrderType::Limit | OrderType::StopLimit);
                order.quantity > listed.most || is_limit && is_outside(order.price)
            }
            Command::Replace { price, quantity, .. } => quantity > listed.most || is_outside(price),
            _ => false,
        }
    }

    /// What cannot be decided, because the master may have changed while the network ran.
    pub fn doubt(&self, cell: u16) -> Option<String> {
        (self.passed > 0).then(|| {
            format!(
                "cell {cell}: {} orders break rules of the instrument master that the network \
                 began with: an operator has changed it meanwhile, or a gateway let them pass",
                self.passed
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_book::order::{NewOrder, Peg, PostOnly, SelfTrade, Side, TimeInForce};
    use nm_wire::{Breach, FirmLimits, Owner, SessionRange};

    const NEW: Command = Command::New(NewOrder {
        id: 1,
        user: 1,
        side: Side::Buy,
        order_type: OrderType::Limit,
        time_in_force: TimeInForce::Day,
        price: 1,
        stop_price: 0,
        quantity: 1,
        display: 0,
        minimum: 0,
        is_hidden: false,
        peg: Peg::No,
        post_only: PostOnly::No,
        self_trade: SelfTrade::Allow,
    });

    const REQUEST: Request = Request {
        instrument: 7,
        session: 1,
        client_seq: 1,
        previous_seq: 0,
        acknowledged: 0,
        intended_ns: 0,
        owner: Owner::NOBODY,
        map_version: 0,
        gateway: 0,
        cell: 0,
        attempt: 0,
        is_previous_answered: false,
        breach: 0,
        command: Command::Tick,
    };

    /// How many of these orders of a session are found to be above limits.
    fn above(limits: FirmLimits, session: u32, orders: &[(OrderType, i64, u64)]) -> u64 {
        let sessions = vec![SessionRange { first: 1, last: 3 }];
        let firm = FirmRecord { number: 7, name: "A".to_string(), sessions, limits };
        let (mut rules, mut findings) = (Rules::default(), Findings::default());
        rules.firms(FirmTable { version: 2, firms: vec![firm] });
        rules.firms(FirmTable { version: 1, firms: vec![] });
        let Command::New(new) = NEW else { panic!("it is an order") };
        for (order_type, price, quantity) in orders.iter().copied() {
            let command = Command::New(NewOrder { order_type, price, quantity, ..new });
            let request = Request { session, command, ..REQUEST };
            rules.executed(&request, false, 1, &mut findings);
            rules.executed(&request, true, 1, &mut findings);
        }
        findings.count(Violation::RuleBroken)
    }

    #[test]
    fn an_order_above_the_limits_of_its_firm_is_a_violation() {
        use OrderType::{Limit, Market};
        let none = FirmLimits::default();
        let orders = [(Limit, -5, 9), (Limit, 5, 10), (Limit, 5, 11), (Market, 5, 1)];
        assert_eq!(above(none, 1, &orders), 0);
        assert_eq!(above(FirmLimits { order_quantity: Some(10), ..none }, 3, &orders), 1);
        for of_value in
            [FirmLimits { order_value: Some(49), ..none }, FirmLimits { value: Some(49), ..none }]
        {
            assert_eq!(above(of_value, 1, &orders), 3);
            assert_eq!(above(of_value, 4, &orders), 0, "another session");
        }
    }

    #[test]
    fn an_order_that_breaks_a_rule_and_takes_effect_is_a_violation() {
        let accepted = Event::Accepted { id: 1, user: 1 };
        let reason = nm_book::order::RejectReason::TooLarge;
        let rejected = Event::rejected(1, 1, reason);
        assert!(Rules::is_effect(&accepted) && !Rules::is_effect(&rejected));
        let mut request = REQUEST;
        let (mut rules, mut findings) = (Rules::default(), Findings::default());
        rules.executed(&request, true, 3, &mut findings);
        request.breach = Breach::TooLarge.code();
        rules.executed(&request, false, 4, &mut findings);
        assert!(findings.is_clean());
        rules.executed(&request, true, 5, &mut findings);
        assert_eq!(findings.count(Violation::RuleBroken), 1);
        let mut stopped = Findings::default();
        (request.breach, request.owner, request.command) = (0, Owner::of_firm(7), NEW);
        rules.decided(StopOrder { owner: request.owner, version: 2, is_stopped: true });
        rules.decided(StopOrder { owner: request.owner, version: 1, is_stopped: false });
        rules.executed(&request, false, 6, &mut stopped);
        rules.executed(&Request { owner: Owner::NOBODY, ..request }, true, 6, &mut stopped);
        rules.executed(&Request { command: Command::Tick, ..request }, true, 6, &mut stopped);
        assert!(stopped.is_clean(), "{stopped:?}");
        rules.executed(&request, true, 7, &mut stopped);
        assert!(stopped.sentences[0].contains("of firm:7, which an operator had stopped"));
        rules.decided(StopOrder { owner: request.owner, version: 3, is_stopped: false });
        rules.executed(&request, true, 8, &mut stopped);
        assert_eq!(stopped.count(Violation::RuleBroken), 1);
        assert!(
            findings.sentences[0].contains("batch 5 has request 1 of session 1"),
            "{findings:?}"
        );
    }
}
