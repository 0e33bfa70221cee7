//! Connections of accelerated processes, read from the ledgers that these keep in shared memory. A
//! ledger is found among the descriptors of its process, or its descriptor was received from there.
//! The content of a ledger is not trusted: its process may write anything into it.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;

use nm_ring::ledger::{
    self, HAS_JOINED, KernelReason, LedgerView, OTHER_USER_SEEN, REASON_OF_PEER, Reclaimed,
    RecordView, SocketPhase, SocketRole, option_name,
};
use rustix::fs::fstat;

/// Beginning of the reasons of other ends.
pub const AT_THE_PEER: &str = "at the peer: ";

/// A ledger and its identity.
#[derive(Debug)]
pub struct Ledger {
    view: LedgerView,
    id: Id,
}

/// Identity of a ledger's memory: device and inode.
pub type Id = (u64, u64);

/// One TCP socket at the time of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    ledger: Id,
    /// Addresses, counts and state.
    pub record: RecordView,
}

/// Identity of a connection: its ledger, the index in it, and the generation of that entry.
pub type Key = (Id, usize, u32);

/// The data path of a connection: the current one, or the last one if it is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPath {
    /// Shared memory.
    SharedMemory,
    /// The kernel until the handshake of both ends.
    KernelBeforeHandshake,
    /// The kernel only.
    Kernel,
    /// The kernel again, after shared memory.
    KernelAfterFallback,
}

impl DataPath {
    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            DataPath::SharedMemory => "shared memory",
            DataPath::KernelBeforeHandshake => "kernel so far",
            DataPath::Kernel => "kernel",
            DataPath::KernelAfterFallback => "kernel again",
        }
    }
}

/// What shared memory does for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Benefit {
    /// Most of its calls go through memory.
    Gains,
    /// It could use memory, and most of its calls went through the kernel.
    SavesLittle,
    /// Memory cost more than it saved, so the library left it on the kernel.
    CostsMore,
    /// Its ends have not met.
    NotYet,
    /// It is on the kernel.
    None,
}

impl Ledger {
    /// The ledger behind a descriptor.
    ///
    /// # Errors
    /// If it is not a ledger, or has another version.
    pub fn of(descriptor: OwnedFd) -> io::Result<Ledger> {
        let stat = fstat(&descriptor)?;
        let id = (stat.st_dev, stat.st_ino);
        Ok(Ledger { view: LedgerView::open(descriptor)?, id })
    }

    /// The ledgers among the descriptors of a process; empty if it has none or may not be read. A
    /// forked process shares the ledger of its parent.
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

    /// Its identity.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Name of the program that made it.
    pub fn program(&self) -> String {
        self.view.program()
    }

    /// Settings of the accelerator that differ from the defaults, as text.
    pub fn settings(&self) -> String {
        self.view.settings()
    }

    /// Sums over the short connections that are not recorded any more.
    pub fn reclaimed(&self) -> Reclaimed {
        self.view.reclaimed()
    }

    /// Connections that were never recorded, because the process had too many.
    pub fn left_out(&self) -> u64 {
        self.view.left_out()
    }

    /// Every recorded connection, open or closed, but those that were left out before they had
    /// transferred anything: [`Ledger::left_out`] counts them.
    pub fn connections(&self) -> Vec<Connection> {
        let is_listed = |record: &RecordView| {
            record.role != SocketRole::Listener && !record.was_left_out_unused()
        };
        let records = self.view.records().filter(is_listed);
        records.map(|record| Connection { ledger: self.id, record }).collect()
    }
}

impl Connection {
    /// Its identity.
    pub fn key(&self) -> Key {
        (self.ledger, self.record.index, self.record.generation)
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.record.phase != SocketPhase::Closed
    }

    /// Calls that transferred bytes: through shared memory, and through the kernel.
    pub fn calls(&self) -> (u64, u64) {
        let RecordView { outgoing: out, incoming: back, .. } = &self.record;
        (
            out.memory_calls.saturating_add(back.memory_calls),
            out.kernel_calls.saturating_add(back.kernel_calls),
        )
    }

    /// Whether it fell back to the kernel and did not return before it was closed: then there is a
    /// reason.
    fn has_fallen_back(&self) -> bool {
        !matches!(self.record.reason, KernelReason::PeerDied | KernelReason::None)
    }

    /// Times that it could use shared memory again after a fallback.
    pub fn rejoins(&self) -> u64 {
        u64::from(self.record.rejoins)
    }

    /// Times that it had to use the kernel for a while, or for the rest of its life.
    pub fn fallbacks(&self) -> u64 {
        self.record.outgoing.fallbacks.max(self.record.incoming.fallbacks)
    }

    /// Its data path.
    pub fn path(&self) -> DataPath {
        let was_in_memory = self.calls().0 > 0;
        match self.record.phase {
            _ if was_in_memory && self.has_fallen_back() => DataPath::KernelAfterFallback,
            SocketPhase::SharedMemory => DataPath::SharedMemory,
            SocketPhase::Candidate => DataPath::KernelBeforeHandshake,
            SocketPhase::Closed if was_in_memory => DataPath::SharedMemory,
            SocketPhase::Kernel if was_in_memory => DataPath::KernelAfterFallback,
            SocketPhase::Closed | SocketPhase::Kernel | SocketPhase::Free => DataPath::Kernel,
        }
    }

    /// What shared memory does for it.
    pub fn benefit(&self) -> Benefit {
        let (memory, kernel) = self.calls();
        let had_no_use = self.record.reason == KernelReason::None
            && self.record.detail == HAS_JOINED
            && memory == 0;
        let is_not_worth_it =
            matches!(self.record.reason, KernelReason::NotWorthIt | KernelReason::Crowded);
        match self.path() {
            _ if is_not_worth_it => Benefit::CostsMore,
            DataPath::Kernel if had_no_use => Benefit::CostsMore,
            DataPath::SharedMemory if memory >= kernel => Benefit::Gains,
            DataPath::SharedMemory => Benefit::SavesLittle,
            DataPath::KernelBeforeHandshake => Benefit::NotYet,
            DataPath::Kernel | DataPath::KernelAfterFallback => Benefit::None,
        }
    }

    /// Whether its other end has an address that is not this one's, and no folder is shared.
    pub fn peer_is_elsewhere(&self) -> bool {
        self.record.reason == KernelReason::NotSameHost
    }

    /// Whether the handshake of both ends is not complete, for a reason that is not known.
    pub fn waits_for_handshake(&self) -> bool {
        self.path() == DataPath::KernelBeforeHandshake && !self.peer_is_of_another_user()
    }

    fn peer_is_of_another_user(&self) -> bool {
        self.record.detail == OTHER_USER_SEEN
    }

    /// Why it uses the kernel, as a clause; none if it does not.
    pub fn kernel_reason(&self) -> Option<String> {
        let path = self.path();
        match (self.record.reason, self.record.phase) {
            _ if path == DataPath::SharedMemory => None,
            (reason, _) if self.record.detail == REASON_OF_PEER => {
                Some(format!("{AT_THE_PEER}{}", reason.text()))
            }
            (KernelReason::SocketOption, _) if self.record.detail != 0 => {
                Some(option_reason(self.record.detail))
            }
            (KernelReason::None, SocketPhase::Candidate | SocketPhase::Closed)
                if self.peer_is_of_another_user() =>
            {
                Some(KernelReason::PeerOfAnotherUser.text().to_string())
            }
            (KernelReason::None, SocketPhase::Candidate) => {
                Some("the handshake of both ends is not complete yet".to_string())
            }
            (KernelReason::None, SocketPhase::Closed) if self.record.detail == HAS_JOINED => {
                Some("its receivers waited in the kernel whenever bytes were sent".to_string())
            }
            (KernelReason::None, SocketPhase::Closed) => {
                Some("it was closed before the handshake of both ends".to_string())
            }
            (KernelReason::None, _) => None,
            (reason, _) => Some(reason.text().to_string()),
        }
    }
}

/// Why an option, by its number in the ledger, keeps a connection on the kernel.
fn option_reason(number: u32) -> String {
    match option_name(number) {
        Some(name) => format!("the socket option {name}, which only the kernel supports"),
        None => {
            let (level, name) = (number >> 16, number & 0xffff);
            format!("{} (level {level}, option {name})", KernelReason::SocketOption.text())
        }
    }
}

/// Connections for tests.
#[cfg(test)]
pub(crate) mod fixture {
    use super::*;
    use nm_ring::ledger::DirectionCounts;

    /// A closed connection with these numbers of calls in each direction.
    pub fn connection(memory_calls: u64, kernel_calls: u64, reason: KernelReason) -> Connection {
        let flow = DirectionCounts { memory_calls, kernel_calls, ..DirectionCounts::default() };
        let record = RecordView {
            rejoins: 0,
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
    use super::fixture::connection;
    use super::*;

    #[test]
    fn ledger_of_process_is_found_once() {
        let (own, file) = ledger::Ledger::create(7, "server", "spin 20 us", 1).unwrap();
        let copy = file.try_clone().unwrap();
        let record = own.claim(7, 2).unwrap();
        record.set_addresses("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        record.set_role(SocketRole::Client);
        record.set_phase(SocketPhase::SharedMemory);
        let listener = own.claim(7, 3).unwrap();
        listener.set_role(SocketRole::Listener);
        listener.set_phase(SocketPhase::Kernel);
        let left_out = [0, 5].map(|bytes| {
            let left_out = own.claim(7, 4).unwrap();
            left_out.set_role(SocketRole::Client);
            left_out.set_reason(KernelReason::Crowded, 0);
            left_out.incoming.kernel_bytes.add(bytes);
            left_out.incoming.kernel_calls.add(bytes);
            left_out
        });
        left_out[1].set_phase(SocketPhase::Closed);
        left_out[0].release();
        let id = Ledger::of(copy).unwrap().id();
        let found = Ledger::of_process(std::process::id());
        let found: Vec<&Ledger> = found.iter().filter(|ledger| ledger.id() == id).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].program(), found[0].settings()),
            ("server".into(), "spin 20 us".into())
        );
        let connections = found[0].connections();
        assert_eq!(connections.len(), 2, "no listener, and nothing that was left out unused");
        assert_eq!(connections[1].record.incoming.kernel_bytes, 5);
        assert_eq!(connections[0].path(), DataPath::SharedMemory);
        assert_eq!(connections[0].record.peer, "127.0.0.1:2".parse().ok());
        drop(file);
        assert!(Ledger::of(File::open("/dev/null").unwrap().into()).is_err());
        assert!(Ledger::of_process(u32::MAX).is_empty());
    }

    #[test]
    fn path_and_reason_follow_from_counts() {
        let of = |connection: &Connection| (connection.path(), connection.kernel_reason());
        let reason = |text: &str| Some(text.to_string());
        assert_eq!(of(&connection(9, 4, KernelReason::None)), (DataPath::SharedMemory, None));
        let mut one = connection(9, 4, KernelReason::None);
        (one.record.incoming.fallbacks, one.record.rejoins) = (1, 1);
        assert_eq!(of(&one), (DataPath::SharedMemory, None), "it has rejoined");
        assert_eq!((one.fallbacks(), one.rejoins()), (1, 1));
        let mut one = connection(0, 4, KernelReason::None);
        assert_eq!(
            of(&one),
            (DataPath::Kernel, reason("it was closed before the handshake of both ends"))
        );
        one.record.detail = HAS_JOINED;
        let text = "its receivers waited in the kernel whenever bytes were sent";
        assert_eq!(of(&one), (DataPath::Kernel, reason(text)));
        one.record.phase = SocketPhase::Candidate;
        assert_eq!(
            of(&one),
            (
                DataPath::KernelBeforeHandshake,
                reason("the handshake of both ends is not complete yet")
            )
        );
        one.record.phase = SocketPhase::SharedMemory;
        assert_eq!(of(&one), (DataPath::SharedMemory, None));
        let benefit = |memory, kernel, reason| connection(memory, kernel, reason).benefit();
        assert_eq!(benefit(9, 4, KernelReason::None), Benefit::Gains);
        assert_eq!(benefit(4, 9, KernelReason::PeerDied), Benefit::SavesLittle);
        assert_eq!(benefit(4, 9, KernelReason::NotWorthIt), Benefit::CostsMore);
        assert_eq!(benefit(0, 9, KernelReason::Crowded), Benefit::CostsMore);
        assert_eq!(benefit(9, 4, KernelReason::Exec), Benefit::None);
        let policy = connection(0, 4, KernelReason::Policy);
        assert_eq!(of(&policy), (DataPath::Kernel, reason("excluded by the policy")));
        let mut back = connection(9, 4, KernelReason::SocketOption);
        back.record.detail = 6 << 16 | 19;
        let (path, why) = of(&back);
        assert_eq!(path, DataPath::KernelAfterFallback);
        assert_eq!(why, reason("the socket option TCP_REPAIR, which only the kernel supports"));
        back.record.detail = 6 << 16 | 99;
        assert!(back.kernel_reason().unwrap().ends_with("(level 6, option 99)"));
        let mut other = connection(9, 4, KernelReason::Exec);
        other.record.detail = REASON_OF_PEER;
        let why = reason("at the peer: passed on through exec");
        assert_eq!(of(&other), (DataPath::KernelAfterFallback, why));
        assert_eq!(of(&connection(9, 4, KernelReason::PeerDied)), (DataPath::SharedMemory, None));
    }
}
