//! What sessions at a gateway have asked for by their logons, and what the cells learn of it.
//!
//! The leaders of cells cancel the orders of sessions that no gateway names for too long, so a
//! gateway only has to name those that are linked to it. It does so over all routers: one of them
//! may stand still. While no session has asked for it, nothing is sent.

use std::collections::BTreeMap;

use nm_book::order::UserId;
use nm_wire::{Logon, Presence, Present};

use crate::limits::{CANCEL_AFTER_S_MAX, CANCEL_AFTER_S_MIN, HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN};
use crate::node::replica::absence::NAMED_EACH_NS as NAME_NS;

/// Least time between two times, ns: many sessions may log on at once.
const PAUSE_NS: u64 = 50_000_000;

/// Sessions in one message.
const NAMES_MAX: usize = 4_096;

/// How often a session is named that does not ask for it any more.
const GOODBYES: u8 = 8;

/// Sessions at a gateway that are named to the cells.
#[derive(Debug, Default)]
pub struct Named {
    /// After how long their orders are cancelled, s, and how often they are named still; always, if
    /// that is not 0.
    sessions: BTreeMap<UserId, (u32, u8)>,
    last_ns: u64,
    is_changed: bool,
}

impl Named {
    /// A session has logged on.
    pub fn add(&mut self, logon: &Logon) {
        self.sessions.insert(logon.session, (logon.cancel_after_s, GOODBYES));
        self.is_changed = true;
    }

    /// A cell has another leader, which may lack them: they are named soon.
    pub fn on_leader(&mut self) {
        self.is_changed = true;
    }

    /// A session has no link here any more.
    pub fn remove(&mut self, session: UserId) {
        self.sessions.remove(&session);
    }

    /// When [`Named::take_due`] has something.
    pub fn deadline_ns(&self) -> Option<u64> {
        let pause_ns = if self.is_changed { PAUSE_NS } else { NAME_NS };
        (!self.sessions.is_empty()).then_some(self.last_ns + pause_ns)
    }

    /// The sessions, in messages without a cell, if it is time to name them.
    pub fn take_due(&mut self, gateway: u16, now_ns: u64) -> Vec<Presence> {
        if self.deadline_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return vec![];
        }
        (self.last_ns, self.is_changed) = (now_ns, false);
        let present = |(session, (cancel_after_s, _)): (&UserId, &(u32, u8))| Present {
            session: *session,
            cancel_after_s: *cancel_after_s,
        };
        let all: Vec<Present> = self.sessions.iter().map(present).collect();
        self.sessions.retain(|_, (cancel_after_s, left)| {
            *left = left.saturating_sub(1);
            *cancel_after_s > 0 || *left > 0
        });
        let message = |part: &[Present]| Presence { cell: 0, gateway, sessions: part.to_vec() };
        all.chunks(NAMES_MAX).map(message).collect()
    }
}

/// Why a logon asks for something that there is not, and what there is.
pub fn fault_of(logon: &Logon) -> Option<String> {
    let Logon { heartbeat_ms, cancel_after_s, .. } = *logon;
    let (least, most) = (HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX);
    if heartbeat_ms != 0 && !(least..=most).contains(&heartbeat_ms) {
        return Some(format!(
            "heartbeats each {heartbeat_ms} ms are not possible: {least} to {most} are, and 0 is \
             for none"
        ));
    }
    let (least, most) = (CANCEL_AFTER_S_MIN, CANCEL_AFTER_S_MAX);
    if cancel_after_s != 0 && !(least..=most).contains(&cancel_after_s) {
        return Some(format!(
            "orders cannot be cancelled after {cancel_after_s} s without a link: {least} to {most} \
             are possible, and 0 is for never"
        ));
    }
    (cancel_after_s != 0 && heartbeat_ms == 0).then(|| {
        "orders can be cancelled after a time without a link only if there are heartbeats: ask for \
         them, such as each 2000 ms"
            .to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logon(session: UserId, heartbeat_ms: u32, cancel_after_s: u32) -> Logon {
        Logon { session, heartbeat_ms, cancel_after_s }
    }

    #[test]
    fn a_logon_that_asks_for_what_there_is_not_is_notified_what_there_is() {
        assert!([(0, 0), (500, 0), (60_000, 3_600), (2_000, 2)].into_iter().all(
            |(heartbeat_ms, after_s)| fault_of(&logon(1, heartbeat_ms, after_s)).is_none()
        ));
        let words = |heartbeat_ms, after_s| fault_of(&logon(1, heartbeat_ms, after_s)).unwrap();
        assert!(words(499, 0).contains("500 to 60000 are"));
        assert!(words(60_001, 0).contains("500 to 60000 are"));
        assert!(words(500, 1).contains("2 to 3600 are possible"));
        assert!(words(500, 3_601).contains("2 to 3600 are possible"));
        assert!(words(0, 5).contains("only if there are heartbeats"));
    }

    #[test]
    fn sessions_are_named_again_and_again_and_those_that_ask_no_more_a_few_times() {
        let mut named = Named::default();
        assert_eq!((named.deadline_ns(), named.take_due(3, 1 << 40).len()), (None, 0));
        named.add(&logon(1, 500, 5));
        named.add(&logon(2, 500, 0));
        let mut now_ns = 1 << 40;
        let mut names = |named: &mut Named| -> Vec<(UserId, u32)> {
            now_ns += NAME_NS;
            let all = named.take_due(3, now_ns);
            assert!(all.iter().all(|it| it.gateway == 3));
            let sessions = all.iter().flat_map(|it| &it.sessions);
            sessions.map(|it| (it.session, it.cancel_after_s)).collect()
        };
        for _ in 0..GOODBYES {
            assert_eq!(names(&mut named), [(1, 5), (2, 0)]);
        }
        assert_eq!(names(&mut named), [(1, 5)]);
        named.remove(1);
        assert_eq!(named.deadline_ns(), None);
        (0..10_000).for_each(|session| named.add(&logon(session, 500, 5)));
        let parts = named.take_due(3, 1 << 50);
        assert_eq!(parts.iter().map(|it| it.sessions.len()).sum::<usize>(), 10_000);
        assert_eq!(parts.len(), 3);
        assert!(named.take_due(3, (1 << 50) + NAME_NS - 1).is_empty(), "not before its time");
    }
}
