//! Verification of one run from its folder.
//!
//! ```text
//! network.toml                          the network as it ran
//! manifest.json                         what each file was when the run ended
//! client*.log                           client logs
//! data/ROLE-INDEX/cell-C/*.journal      journals; another name for `data` is in network.toml
//! data/ROLE-INDEX/cell-C/hashes.jsonl   states of that replica, see [`nm_exchange::hashes`]
//! data/ROLE-INDEX/cell-C/snapshot       its last snapshot, if it keeps its state on disk
//! ```
//!
//! Nothing outside the folder is read. A folder that is not as its manifest says proves nothing and
//! is not replayed. A journal whose beginning was purged is replayed from a snapshot.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use nm_book::book::Book;
use nm_book::order::{InstrumentId, UserId};
use nm_codec::fnv1a;
use nm_exchange::cell::Cell;
use nm_exchange::hashes;
use nm_exchange::network::{Durability, Network, NodeId, Role};
use nm_load::log;
use nm_model::agent::{Failure, FailureKind};
use nm_replica::journal::{self, Reader};
use nm_stats::random::Random;
use nm_sys::text_file;

use crate::recording::{Comparison, NETWORK, Recording};

use crate::client_logs::{CLIENT_LOG_BYTES_MAX, client_logs, unreadable};
use crate::cuts::{self, Cuts};
use crate::findings::{Findings, Violation};
use crate::history;
use crate::judge::{Clients, check_deliveries, judge};
use crate::ownership::Owners;
use crate::replay::{self, Replay};

/// Verifies a run's folder.
///
/// # Errors
/// If something cannot be read, leads out of the folder, or evidence is missing. A violation is no
/// error: it is in the findings.
pub fn folder(path: &Path) -> Result<Findings, Failure> {
    folder_cut(path, Cuts::default())
}

/// Verifies a run's folder, and also replays each cell's journal from snapshots.
///
/// # Errors
/// As [`folder`].
pub fn folder_cut(path: &Path, cuts: Cuts) -> Result<Findings, Failure> {
    let recording = Recording::open(path)?;
    let network = Network::read_unresolved(&path.join(NETWORK)).map_err(bad)?;
    let mut findings = Findings::default();
    findings.durability = network.durability;
    let data = recording.data(network.data.as_deref())?;
    if let Some(other) = network.data.as_ref().filter(|other| other.is_absolute()) {
        findings.notes.push(format!(
            "{NETWORK} names the folder {} for journals; those in {} were read",
            other.display(),
            data.display()
        ));
    }
    match recording.compare()? {
        Comparison::Differences(differences) => findings.damage = differences,
        Comparison::NoManifest => findings.doubts.push(
            "there is no manifest, so a file that is missing or was changed may not be noticed: \
             the run did not end by itself, or lost a host"
                .to_string(),
        ),
    }
    if findings.damage.is_empty() {
        check_all(path, &data, &network, cuts, &mut findings)?;
    }
    Ok(findings)
}

/// The files of a cell's replicas.
struct CellFiles {
    cell: u16,
    journals: Vec<RecordedJournal>,
    /// Replicas without a journal.
    missing: Vec<String>,
    log: MergedLog,
}

/// Replays every cell and compares it with the clients' logs.
fn check_all(
    path: &Path,
    data: &Path,
    network: &Network,
    cuts: Cuts,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let Some(mut clients) = clients(path, findings)? else { return Ok(()) };
    let mut all = vec![];
    for cell in 0..network.nodes(Role::Mediator).len() as u16 {
        let (mut journals, missing) = journals(data, network, cell, findings);
        findings.journals += journals.len() as u64;
        let log = MergedLog::new(network, cell, &journals, findings);
        // The one that is needed is in the log.
        journals.iter_mut().for_each(|journal| journal.snapshot = None);
        all.push(CellFiles { cell, journals, missing, log });
    }
    if !findings.damage.is_empty() {
        return Ok(());
    }
    let sessions = clients.sessions();
    let has_purged = all.iter().any(|files| files.log.start.is_some());
    let (mut owners, mut random) = (Owners::new(network), Random::new(cuts.seed));
    let (mut executed, mut replayed, mut moved) = (vec![], HashMap::new(), vec![]);
    for files in &all {
        let CellFiles { cell, journals, log, .. } = files;
        let mut replay = Replay::new(*cell, network, cuts.count > 0);
        if let Some(start) = &log.start {
            let who = &journals[start.of].name;
            findings.notes.push(format!(
                "cell {cell} is replayed from the snapshot of {who}, after batch {}: earlier \
                 requests are known to be executed, but not their results",
                start.index
            ));
            replay.restore(start.state.clone(), &sessions, &mut owners).map_err(bad)?;
        }
        let needed = has_purged.then_some(&sessions);
        log.replay(journals, &mut replay, needed, &mut owners, findings)?;
        log.copies(&replay, &clients, findings);
        confirmed(*cell, journals, &replay, &clients, findings);
        clients.add_expired(replay.expired.drain());
        findings.doubts.extend(replay.rules.doubt(*cell));
        if replay.lost_state() {
            findings.notes.push(format!(
                "the mediator of cell {cell} was restarted with empty books: without \
                 replicas, nothing is guaranteed beyond that"
            ));
            owners.lost_books(*cell);
        }
        executed.append(&mut replay.executed);
        replayed.extend(std::mem::take(&mut replay.delivered));
        moved.push(std::mem::take(&mut replay.moved_events));
        for incarnation in replay.into_incarnations() {
            cuts::check(*cell, &incarnation, cuts.count, &mut random, findings).map_err(bad)?;
        }
    }
    if !has_journals(data, network, &clients, &owners, &all, findings) {
        return Ok(());
    }
    owners.check(findings);
    clients.skip(&owners);
    judge(&mut executed, &clients, &owners, findings);
    replay::fold(&moved, &mut replayed);
    check_deliveries(&replayed, &clients, &owners, findings);
    Ok(())
}

/// Whether each cell to which a client has sent a request, or another cell an instrument, has a
/// journal; without one, nothing can be said of its requests.
fn has_journals(
    data: &Path,
    network: &Network,
    clients: &Clients,
    owners: &Owners,
    all: &[CellFiles],
    findings: &mut Findings,
) -> bool {
    let destinations = owners.destinations();
    let mut has_all = true;
    for CellFiles { cell, journals, missing, .. } in all {
        let of_cell = |instrument| network.cell_of(instrument) == *cell;
        let is_used = destinations.contains(cell) || clients.instruments().any(of_cell);
        if !is_used {
            continue;
        }
        if journals.is_empty() {
            has_all = false;
            findings.doubts.push(format!(
                "there is no journal of cell {cell} below {}, so nothing shows what it executed: \
                 run the exchange with --record",
                data.display()
            ));
            continue;
        }
        let doubt = |name: &String| format!("cell {cell}: there is no journal of {name}");
        findings.doubts.extend(missing.iter().map(doubt));
    }
    has_all
}

/// Doubts the books of a cell if no replica has recorded their state after the last request that a
/// client has a reply to.
fn confirmed(
    cell: u16,
    journals: &[RecordedJournal],
    replay: &Replay,
    clients: &Clients,
    findings: &mut Findings,
) {
    let replied = replay.executed.iter().filter(|one| clients.has_reply(&one.name));
    let Some(last) = replied.map(|one| one.index).max() else { return };
    let states = journals.iter().flat_map(|journal| &journal.states);
    let doubt = match states.map(|(index, _)| *index).max() {
        Some(index) if index >= last => return,
        Some(index) => format!(
            "cell {cell}: no replica recorded a state after batch {last}, which has answered \
             requests; the latest is that after batch {index}"
        ),
        None => format!("cell {cell}: no replica recorded a state, so none confirms its books"),
    };
    findings.doubts.push(doubt);
}

fn bad(message: impl std::fmt::Display) -> Failure {
    Failure::new(FailureKind::BadRequest, message.to_string())
}

/// What the logs of clients say; none if there are none, or if one is damaged.
fn clients(path: &Path, findings: &mut Findings) -> Result<Option<Clients>, Failure> {
    let logs = client_logs(path)?;
    let mut clients = Clients::default();
    let mut is_empty = true;
    for log in &logs {
        let name = log.file_name().unwrap_or_default().to_string_lossy();
        let bytes = text_file::read_bytes(log, CLIENT_LOG_BYTES_MAX)
            .map_err(|error| unreadable(log, error))?;
        if bytes.is_empty() {
            findings.doubts.push(format!("{name} is empty"));
            continue;
        }
        is_empty = false;
        match log::parse(&bytes) {
            Ok(records) => {
                history::check(&name, &records, findings);
                clients.add_log(&records);
            }
            Err(why) => findings.damage.push(format!("{name} cannot be read: {why}")),
        }
    }
    if is_empty {
        findings.doubts.push(
            "there is no client*.log, so nothing shows what clients saw: run the exchange with \
             --record"
                .to_string(),
        );
    }
    Ok((!is_empty && findings.damage.is_empty()).then_some(clients))
}

/// The journals of a cell's replicas, in order, and the replicas that have none.
fn journals(
    data: &Path,
    network: &Network,
    cell: u16,
    findings: &mut Findings,
) -> (Vec<RecordedJournal>, Vec<String>) {
    let (mut journals, mut missing) = (vec![], vec![]);
    let folder_of = |node: NodeId| data.join(node.file_name()).join(format!("cell-{cell}"));
    let replicas = match network.durability {
        Durability::None => vec![Role::Mediator.node(cell)],
        Durability::MemoryQuorum | Durability::DiskQuorum => {
            // Those at first, and those that have replaced others.
            let (first, mut places) = (network.replicas(cell), network.replica_places(cell));
            places.retain(|place| first.contains(place) || folder_of(*place).is_dir());
            places
        }
    };
    for node in replicas {
        let (folder, name) = (folder_of(node), node.to_string());
        let written = folder.is_dir().then(|| RecordedJournal::read(folder, name.clone()));
        let written = written.transpose().unwrap_or_else(|failure| {
            findings.damage.push(format!("{name}: {}", failure.message));
            None
        });
        match written {
            Some(written) if !written.marks.is_empty() => journals.push(written),
            Some(written) if !written.states.is_empty() => findings.add(Violation::Gap, || {
                let index = written.states[0].0;
                format!(
                    "cell {cell}: {name} recorded a state after batch {index}, and its journal \
                     has nothing"
                )
            }),
            _ => missing.push(name),
        }
    }
    for RecordedJournal { name, torn_bytes, .. } in journals.iter().filter(|one| one.torn_bytes > 0)
    {
        findings.doubts.push(format!(
            "cell {cell}: the journal of {name} ends with {torn_bytes} bytes that are no record"
        ));
    }
    (journals, missing)
}

/// Summary of one record of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RecordSummary {
    term: u64,
    kind: journal::RecordKind,
    /// Length and CRC-32C of its content.
    digest: (usize, u32),
}

/// A journal, without the contents of its records.
#[derive(Debug)]
struct RecordedJournal {
    folder: PathBuf,
    name: String,
    first: u64,
    marks: Vec<RecordSummary>,
    /// State hashes that the replica recorded, that of its last snapshot included: index of the
    /// batch, and the hash.
    states: Vec<(u64, u64)>,
    /// Bytes at its end that are no record: a process was killed while it wrote.
    torn_bytes: u64,
    /// Its last snapshot: the index of the last record that it includes, and the cell's state.
    snapshot: Option<(u64, Vec<u8>)>,
}

impl RecordedJournal {
    fn read(folder: PathBuf, name: String) -> Result<RecordedJournal, Failure> {
        let mut reader = Reader::open(&folder)?;
        let (mut first, mut marks) = (0, vec![]);
        while let Some(record) = reader.next_record()? {
            if marks.is_empty() {
                first = record.index;
            }
            let digest = (record.bytes.len(), nm_codec::crc32c(&record.bytes));
            marks.push(RecordSummary { term: record.term, kind: record.kind, digest });
        }
        let torn_bytes = reader.torn_bytes;
        let mut states = hashes::read(&folder)?;
        let snapshot = nm_replica::saved_snapshot(&folder)?;
        if let Some((_, state)) = &snapshot {
            let index = Cell::<Book>::load(state).map_err(|why| unreadable(&folder, why))?.index();
            states.push((index, fnv1a(state)));
        }
        Ok(RecordedJournal { folder, name, first, marks, states, torn_bytes, snapshot })
    }

    /// Index of the last record.
    fn last(&self) -> u64 {
        self.first + self.marks.len() as u64 - 1
    }

    fn mark(&self, index: u64) -> Option<&RecordSummary> {
        self.marks.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    fn batch(&self, index: u64) -> Option<&RecordSummary> {
        self.mark(index).filter(|mark| mark.kind == journal::RecordKind::Batch)
    }
}

/// The log of a cell, merged from the journals of its replicas.
#[derive(Debug)]
struct MergedLog {
    first: u64,
    /// Journal of each batch; none where there is no batch.
    of: Vec<Option<usize>>,
    copies: Vec<usize>,
    /// Copies that the durability requires; zero if that cannot be checked.
    required_copies: usize,
    /// Snapshot from which the replay starts, if the beginning was purged.
    start: Option<ReplayStart>,
}

/// A snapshot that replaces everything before it.
#[derive(Debug)]
struct ReplayStart {
    /// Index of the journal to which it belongs.
    of: usize,
    /// Index of the last record that it includes.
    index: u64,
    /// The cell's state.
    state: Vec<u8>,
}

impl ReplayStart {
    /// The earliest snapshot that journals starting at `first` continue without a gap.
    fn before(first: u64, journals: &[RecordedJournal]) -> Option<ReplayStart> {
        let snapshots = journals.iter().enumerate().filter_map(|(of, journal)| {
            let (index, state) = journal.snapshot.as_ref()?;
            (*index + 1 >= first).then_some((*index, of, state))
        });
        let (index, of, state) = snapshots.min_by_key(|(index, of, _)| (*index, *of))?;
        Some(ReplayStart { of, index, state: state.clone() })
    }
}

impl MergedLog {
    fn new(
        network: &Network,
        cell: u16,
        journals: &[RecordedJournal],
        findings: &mut Findings,
    ) -> MergedLog {
        // The journal of a replica that would win an election contains every committed entry.
        let best = (0..journals.len()).max_by_key(|at| {
            let journal = &journals[*at];
            (journal.marks.last().map(|mark| mark.term), journal.last())
        });
        let is_raft = network.durability == Durability::DiskQuorum;
        let first = journals.iter().map(|journal| journal.first).min().unwrap_or(1);
        let last = match best {
            Some(best) if is_raft => journals[best].last(),
            _ => journals.iter().map(RecordedJournal::last).max().unwrap_or(0),
        };
        let start = (first > 1).then(|| ReplayStart::before(first, journals)).flatten();
        let mut chain = MergedLog { first, of: vec![], copies: vec![], required_copies: 0, start };
        for index in first..=last {
            let holder = match best {
                Some(best) if is_raft && journals[best].mark(index).is_some() => {
                    journals[best].batch(index).map(|_| best)
                }
                _ => (0..journals.len()).find(|at| journals[*at].batch(index).is_some()),
            };
            let mark = holder.and_then(|at| journals[at].batch(index));
            let holds =
                |journal: &&RecordedJournal| index < journal.first || journal.batch(index) == mark;
            chain.copies.push(journals.iter().filter(holds).count());
            chain.of.push(holder);
            let is_missing = |journal: &RecordedJournal| {
                journal.mark(index).is_none_or(|mark| mark.kind == journal::RecordKind::Missed)
            };
            if journals.iter().all(is_missing) {
                findings
                    .add(Violation::Gap, || format!("cell {cell}: no journal has batch {index}"));
            }
        }
        let voters = network.replicas(cell).len();
        if is_raft && journals.len() >= voters {
            chain.required_copies = voters / 2 + 1;
        }
        chain.agreement(cell, journals, is_raft, findings);
        chain.own_states(cell, journals, last, findings);
        if first > 1 && chain.start.is_none() {
            findings.add(Violation::Gap, || {
                format!(
                    "cell {cell}: all journals begin at batch {first}, and no snapshot includes \
                     the earlier ones"
                )
            });
        }
        chain
    }

    /// Checks that each replica's journal has what its recorded states include. States beyond all
    /// journals are named when the log is replayed.
    fn own_states(
        &self,
        cell: u16,
        journals: &[RecordedJournal],
        last: u64,
        findings: &mut Findings,
    ) {
        for journal in journals {
            let included = journal.snapshot.as_ref().map_or(0, |(index, _)| *index);
            let end = journal.last().max(included);
            let states = journal.states.iter().map(|(index, _)| *index);
            let Some(index) = states.filter(|index| (end + 1..=last).contains(index)).max() else {
                continue;
            };
            findings.add(Violation::Gap, || {
                format!(
                    "cell {cell}: {} recorded a state after batch {index}, and its journal ends \
                     with batch {end}",
                    journal.name
                )
            });
        }
    }

    /// Checks that replicas differ only at the end of a journal, in uncommitted entries.
    fn agreement(
        &self,
        cell: u16,
        journals: &[RecordedJournal],
        is_raft: bool,
        findings: &mut Findings,
    ) {
        for journal in journals {
            let mut differs = None;
            for (index, holder) in (self.first..).zip(&self.of) {
                let Some(own) = journal.batch(index) else { continue };
                let Some(theirs) = holder.and_then(|at| journals[at].batch(index)) else {
                    differs = Some(index);
                    continue;
                };
                if own != theirs {
                    differs = Some(index);
                }
                let has_gap = if is_raft { own == theirs } else { own != theirs };
                if let Some(at) = differs.filter(|_| has_gap) {
                    let name = &journal.name;
                    findings.add(Violation::Diverged, || {
                        format!(
                            "cell {cell}: {name} has a different batch {at} than the other replicas"
                        )
                    });
                    break;
                }
            }
        }
    }

    fn replay(
        &self,
        journals: &[RecordedJournal],
        replay: &mut Replay,
        sessions: Option<&HashMap<InstrumentId, Vec<UserId>>>,
        owners: &mut Owners,
        findings: &mut Findings,
    ) -> Result<(), Failure> {
        let (cell, begun) = (replay.cell(), self.start.as_ref().map_or(0, |start| start.index));
        let mut recorded: BTreeMap<u64, Vec<(String, u64)>> = BTreeMap::new();
        let mut readers = vec![];
        for journal in journals {
            readers.push(Reader::open(&journal.folder)?);
            for (index, hash) in &journal.states {
                recorded.entry(*index).or_default().push((journal.name.clone(), *hash));
            }
        }
        // Earlier states cannot be compared.
        recorded = recorded.split_off(&replay.index());
        if let Some(states) = recorded.remove(&replay.index()) {
            replay.compare(&states, findings);
        }
        for (index, holder) in (self.first..).zip(&self.of) {
            let Some(at) = holder.filter(|_| index > begun) else { continue };
            while let Some(record) = readers[at].next_record()? {
                if record.index < index {
                    continue;
                }
                let at = (record.index, record.term);
                replay.batch(at, &record.bytes, sessions, owners, findings).map_err(bad)?;
                break;
            }
            if let Some(states) = recorded.remove(&index) {
                replay.compare(&states, findings);
            }
        }
        replay.compare(&[], findings);
        for (index, states) in &recorded {
            let who = states.first().map_or("", |(who, _)| who);
            findings.add(Violation::Gap, || {
                format!(
                    "cell {cell}: {who} recorded a state after batch {index}, which no journal has"
                )
            });
        }
        Ok(())
    }

    /// Checks that each acknowledged request is on as many disks as the durability requires.
    fn copies(&self, replay: &Replay, clients: &Clients, findings: &mut Findings) {
        for one in &replay.executed {
            let copies = self.copies[(one.index - self.first) as usize];
            if copies < self.required_copies && clients.has_reply(&one.name) {
                findings.add(Violation::TooFewCopies, || {
                    let (name, index, required) = (one.name, one.index, self.required_copies);
                    format!("{name} in batch {index} is on {copies} disks, not on {required}")
                });
            }
        }
    }
}
