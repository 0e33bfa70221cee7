//! What accelerated processes do with their connections, read from the ledgers that they keep in
//! memory: a process's own, found among its descriptors, or one that was handed over. What stands
//! in a ledger is a claim of its process.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;

use nm_ring::ledger::{self, KernelReason, LedgerView, RecordView, SocketPhase, SocketRole};
use rustix::fs::fstat;

/// A ledger, and which one it is.
#[derive(Debug)]
pub struct Ledger {
    view: LedgerView,
    id: Id,
}

/// Tells one memory from another: device and inode.
pub type Id = (u64, u64);

/// One TCP socket, as it was when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    ledger: Id,
    /// Addresses, counts and state.
    pub record: RecordView,
}

/// Tells one connection from all others: ledger, place in it, and how often that was taken.
pub type Key = (Id, usize, u32);

/// Where the bytes of a connection go, or went at last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Through shared memory.
    Memory,
    /// Through the kernel, until both ends have met.
    KernelSoFar,
    /// Through the kernel.
    Kernel,
    /// Through the kernel, after they went through shared memory.
    KernelAgain,
}

impl Place {
    /// The place, for a table.
    pub fn words(self) -> &'static str {
        match self {
            Place::Memory => "shared memory",
            Place::KernelSoFar => "kernel so far",
            Place::Kernel => "kernel",
            Place::KernelAgain => "kernel again",
        }
    }
}

impl Ledger {
    /// The ledger behind a descriptor.
    ///
    /// # Errors
    /// If it is none, or one of another version.
    pub fn of(descriptor: OwnedFd) -> io::Result<Ledger> {
        let stat = fstat(&descriptor)?;
        let id = (stat.st_dev, stat.st_ino);
        Ok(Ledger { view: LedgerView::open(descriptor)?, id })
    }

    /// The ledgers among the descriptors of a process; none if it has none or may not be looked at.
    /// A process that was forked has its family's.
    pub fn of_process(pid: u32) -> Vec<Ledger> {
        let mut ledgers: Vec<Ledger> = vec![];
        let name = format!("memfd:{}", ledger::NAME);
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for entry in entries {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            if !target.to_string_lossy().trim_start_matches('/').starts_with(&name) {
                continue;
            }
            let opened = File::open(entry.path()).and_then(|file| Ledger::of(file.into()));
            if let Ok(ledger) = opened
                && !ledgers.iter().any(|known| known.id == ledger.id)
            {
                ledgers.push(ledger);
            }
        }
        ledgers
    }

    /// Which one it is.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Name of the program that made it.
    pub fn program(&self) -> String {
        self.view.program()
    }

    /// Settings of the accelerator in words, those that are not the defaults.
    pub fn settings(&self) -> String {
        self.view.settings()
    }

    /// Every connection that is or was, as far as there was room.
    pub fn connections(&self) -> Vec<Connection> {
        let records = self.view.records().filter(|record| record.role != SocketRole::Listener);
        records.map(|record| Connection { ledger: self.id, record }).collect()
    }
}

impl Connection {
    /// Which one it is.
    pub fn key(&self) -> Key {
        (self.ledger, self.record.index, self.record.generation)
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.record.phase != SocketPhase::Closed
    }

    /// Calls that moved bytes: through memory, and through the kernel.
    pub fn calls(&self) -> (u64, u64) {
        let RecordView { outgoing: out, incoming: back, .. } = &self.record;
        (
            out.memory_calls.saturating_add(back.memory_calls),
            out.kernel_calls.saturating_add(back.kernel_calls),
        )
    }

    /// Whether it left shared memory before its end. The end that left says why; the other one only
    /// knows that both directions did. That one direction did, its end alone brings about.
    fn was_sent_back(&self) -> bool {
        let RecordView { outgoing: out, incoming: back, reason, .. } = &self.record;
        match reason {
            KernelReason::PeerDied => false,
            KernelReason::None => out.fallbacks > 0 && back.fallbacks > 0,
            _ => true,
        }
    }

    /// Directions that went back to the kernel before the end.
    pub fn fallbacks(&self) -> u64 {
        let counted = self.record.outgoing.fallbacks.saturating_add(self.record.incoming.fallbacks);
        if self.place() == Place::KernelAgain { counted.max(1) } else { 0 }
    }

    /// Where its bytes go.
    pub fn place(&self) -> Place {
        let was_in_memory = self.calls().0 > 0;
        match self.record.phase {
            _ if was_in_memory && self.was_sent_back() => Place::KernelAgain,
            SocketPhase::SharedMemory => Place::Memory,
            SocketPhase::Candidate => Place::KernelSoFar,
            SocketPhase::Closed if was_in_memory => Place::Memory,
            SocketPhase::Kernel if was_in_memory => Place::KernelAgain,
            SocketPhase::Closed | SocketPhase::Kernel | SocketPhase::Free => Place::Kernel,
        }
    }

    /// Why it is with the kernel, as a clause; none if it is not.
    pub fn why(&self) -> Option<String> {
        let place = self.place();
        match (self.record.reason, self.record.phase) {
            _ if place == Place::Memory => None,
            (KernelReason::SocketOption, _) if self.record.detail != 0 => {
                let (level, name) = (self.record.detail >> 16, self.record.detail & 0xffff);
                Some(format!(
                    "{} (level {level}, option {name})",
                    KernelReason::SocketOption.text()
                ))
            }
            (KernelReason::None, _) if place == Place::KernelAgain => {
                Some("the other end went back to the kernel".to_string())
            }
            (KernelReason::None, SocketPhase::Candidate) => {
                Some("the ends have not met yet".to_string())
            }
            (KernelReason::None, SocketPhase::Closed) => {
                Some("it ended before the ends had met".to_string())
            }
            (KernelReason::None, _) => None,
            (reason, _) => Some(reason.text().to_string()),
        }
    }
}

/// Connections made up for tests.
#[cfg(test)]
pub(crate) mod make {
    use super::*;
    use nm_ring::ledger::DirectionCounts;

    /// A closed connection with as many calls in each direction.
    pub fn connection(memory_calls: u64, kernel_calls: u64, reason: KernelReason) -> Connection {
        let flow = DirectionCounts { memory_calls, kernel_calls, ..DirectionCounts::default() };
        let record = RecordView {
            index: 0,
            generation: 1,
            phase: SocketPhase::Closed,
            reason,
            detail: 0,
            role: SocketRole::Client,
            local: None,
            peer: None,
            opened_at_ns: 0,
            holders: 0,
            is_nonblocking: false,
            pid: 1,
            outgoing: flow,
            incoming: flow,
        };
        Connection { ledger: (0, 0), record }
    }
}

#[cfg(test)]
mod tests {
    use super::make::connection;
    use super::*;

    #[test]
    fn the_ledger_of_a_process_is_found_once() {
        let (own, file) = ledger::Ledger::create(7, "server", "spin 20 us", 1).unwrap();
        let again = file.try_clone().unwrap();
        let record = own.claim(7, 2).unwrap();
        record.set_addresses("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        record.set_role(SocketRole::Client);
        record.set_phase(SocketPhase::SharedMemory);
        let listener = own.claim(7, 3).unwrap();
        listener.set_role(SocketRole::Listener);
        listener.set_phase(SocketPhase::Kernel);
        let id = Ledger::of(again).unwrap().id();
        let found = Ledger::of_process(std::process::id());
        let found: Vec<&Ledger> = found.iter().filter(|ledger| ledger.id() == id).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].program(), found[0].settings()),
            ("server".into(), "spin 20 us".into())
        );
        let connections = found[0].connections();
        assert_eq!(connections.len(), 1, "no listener");
        assert_eq!(connections[0].place(), Place::Memory);
        assert_eq!(connections[0].record.peer, "127.0.0.1:2".parse().ok());
        drop(file);
        assert!(Ledger::of(File::open("/dev/null").unwrap().into()).is_err());
        assert!(Ledger::of_process(u32::MAX).is_empty());
    }

    #[test]
    fn place_and_reason_follow_from_what_was_counted() {
        let of = |connection: &Connection| (connection.place(), connection.why());
        let words = |text: &str| Some(text.to_string());
        assert_eq!(of(&connection(9, 4, KernelReason::None)), (Place::Memory, None));
        let mut one = connection(9, 4, KernelReason::None);
        one.record.incoming.fallbacks = 1;
        assert_eq!(of(&one), (Place::Memory, None), "at its end");
        let mut one = connection(0, 4, KernelReason::None);
        assert_eq!(of(&one), (Place::Kernel, words("it ended before the ends had met")));
        one.record.phase = SocketPhase::Candidate;
        assert_eq!(of(&one), (Place::KernelSoFar, words("the ends have not met yet")));
        one.record.phase = SocketPhase::SharedMemory;
        assert_eq!(of(&one), (Place::Memory, None));
        let policy = connection(0, 4, KernelReason::Policy);
        assert_eq!(of(&policy), (Place::Kernel, words("the policy keeps it on the kernel")));
        let mut back = connection(9, 4, KernelReason::SocketOption);
        back.record.detail = 6 << 16 | 19;
        let (place, why) = of(&back);
        assert_eq!(place, Place::KernelAgain);
        assert!(why.unwrap().ends_with("(level 6, option 19)"));
        let mut other = connection(9, 4, KernelReason::None);
        (other.record.outgoing.fallbacks, other.record.incoming.fallbacks) = (1, 1);
        let why = words("the other end went back to the kernel");
        assert_eq!((of(&other), other.fallbacks()), ((Place::KernelAgain, why), 2));
        assert_eq!(of(&connection(9, 4, KernelReason::PeerDied)), (Place::Memory, None));
    }
}
