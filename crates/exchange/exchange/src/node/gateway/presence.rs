//! What sessions at a gateway have asked for by their logons, and what the cells learn of it.
//!
//! The leaders of cells cancel the orders of sessions that no gateway names for too long. So a
//! gateway only has to name those that are linked to it. It does so over all routers: one of them
//! may stand still. While no session has asked for it, nothing is sent.

use std::collections::BTreeMap;

use nm_book::order::UserId;
use nm_wire::{Logon, Owner, Presence, Present};

use crate::cell::{Watch, WatchedSessions};
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
    /// Those whose orders are cancelled when they are away.
    watched: WatchedSessions,
    /// Those that ask for it no more, and how often they are named still.
    goodbyes: BTreeMap<UserId, u8>,
    last_ns: u64,
    is_changed: bool,
}

impl Named {
    /// A session of an owner has logged on. Why that is not possible, if it is not.
    pub fn add(&mut self, logon: &Logon, owner: Owner) -> Option<String> {
        let Logon { session, cancel_after_s, .. } = *logon;
        if cancel_after_s > 0 && !self.watched.has_room(session, owner) {
            return Some(format!(
                "your quota of sessions whose orders are cancelled when they are away is full: \
                 {owner}"
            ));
        }
        self.watched.set(session, Watch { cancel_after_s, owner });
        match cancel_after_s {
            0 => drop(self.goodbyes.insert(session, GOODBYES)),
            _ => drop(self.goodbyes.remove(&session)),
        }
        self.is_changed = true;
        None
    }

    /// A cell has another leader, which may lack them: they are named soon.
    pub fn on_leader(&mut self) {
        self.is_changed = true;
    }

    /// A session has no link here any more.
    pub fn remove(&mut self, session: UserId) {
        self.watched.remove(session);
        self.goodbyes.remove(&session);
    }

    /// When [`Named::take_due`] has something.
    pub fn deadline_ns(&self) -> Option<u64> {
        let pause_ns = if self.is_changed { PAUSE_NS } else { NAME_NS };
        let has_some = !self.watched.is_empty() || !self.goodbyes.is_empty();
        has_some.then_some(self.last_ns + pause_ns)
    }

    /// The sessions, in messages without a cell, if it is time to name them.
    pub fn take_due(&mut self, gateway: u16, now_ns: u64) -> Vec<Presence> {
        if self.deadline_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return vec![];
        }
        (self.last_ns, self.is_changed) = (now_ns, false);
        let present = |(session, watch): (UserId, Watch)| {
            let Watch { cancel_after_s, owner } = watch;
            Present { session, cancel_after_s, owner }
        };
        let no_longer = self.goodbyes.keys().map(|session| (*session, Watch::NO_LONGER));
        let all: Vec<Present> = self.watched.iter().chain(no_longer).map(present).collect();
        self.goodbyes.retain(|_, left| {
            *left -= 1;
            *left > 0
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
        let owner = Owner::of_user(1);
        assert_eq!(named.add(&logon(1, 500, 5), owner), None);
        assert_eq!(named.add(&logon(2, 500, 0), owner), None);
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
        (0..10_000).for_each(|it| assert_eq!(named.add(&logon(it, 500, 5), owner), None));
        let parts = named.take_due(3, 1 << 50);
        assert_eq!(parts.iter().map(|it| it.sessions.len()).sum::<usize>(), 10_000);
        assert_eq!(parts.len(), 3);
        assert!(named.take_due(3, (1 << 50) + NAME_NS - 1).is_empty(), "not before its time");
        let full = (10_000..u32::MAX).find_map(|it| named.add(&logon(it, 500, 5), owner)).unwrap();
        assert!(full.ends_with("when they are away is full: user:1"), "{full}");
        assert_eq!(named.add(&logon(u32::MAX, 500, 5), Owner::of_user(2)), None);
        assert_eq!(named.add(&logon(1, 500, 7), owner), None, "it is there already");
    }
}
