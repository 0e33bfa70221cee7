//! Verification of a run's folder: folders with real journals and client logs, intact, and damaged
//! in each way that must be detected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use nm_book::book::Book;
use nm_book::codec;
use nm_book::order::{Command, Event, Matching, NewOrder, OrderType, Peg, PostOnly, TimeInForce};
use nm_codec::{FNV1A, fnv1a_on};
use nm_exchange::batch;
use nm_exchange::cell::{
    Admitted, Cell, CopyPiece, DESK, Handled, MoveStep, Request, event_recipients,
};
use nm_exchange::hashes::StateHashes;
use nm_exchange::master::{Listing, Master};
use nm_exchange::moves::{Attempt, Forget, MoveId, MoveParts, Part, Release};
use nm_exchange::network::{Durability, Network, Node, NodeCounts, NodeId, Role};
use nm_load::clients::Clients;
use nm_load::log::{Delivered, Log, Record};
use nm_load::mix::OrderGenerator;
use nm_load::{Settings, Sizes};
use nm_replica::journal::{Journal, RecordKind, Settings as JournalSettings};
use nm_replica::{Group, Log as _, LogEvent, Member, Replicas};
use nm_sys::clock::Deadline;
use nm_sys::poll::{Interest, Poller, Waker};
use nm_verify::recording::Recording;
use nm_verify::{CLIENT_LOG_BYTES_MAX, Cuts, Findings, Verdict, Violation, folder, folder_cut};
use nm_wire::{
    Block, FirmLimits, FirmRecord, FirmTable, Firms, Message, Reply, Series, SessionRange, Shape,
    Value,
};

const CELLS: usize = 2;
const INSTRUMENTS: usize = 8;

/// One record of a journal.
#[derive(Clone)]
pub struct Entry {
    index: u64,
    term: u64,
    pub kind: RecordKind,
    pub bytes: Vec<u8>,
}

/// A run without faults: the journals of its cells, and the records of its clients.
pub struct Run {
    folder: tempfile::TempDir,
    /// What may be traded.
    pub master: Option<Arc<Master>>,
    durability: Durability,
    /// By cell.
    pub entries: Vec<Vec<Entry>>,
    hashes: Vec<u64>,
    pub records: Vec<Record>,
}

/// What sessions that have received all events record at their end.
fn deliveries(records: &[Record], events: &Events) -> Vec<Record> {
    let sent = records.iter().filter_map(|record| match record {
        Record::Sent(sent) => Some((sent.name.instrument, sent.name.session)),
        _ => None,
    });
    let pairs: BTreeSet<(u32, u32)> = sent.collect();
    let delivered = pairs.into_iter().map(|(instrument, session)| {
        let (events, events_hash) =
            events.get(&(instrument, session)).copied().unwrap_or((0, FNV1A));
        let has_gap = false;
        Record::Delivered(Delivered { session, instrument, events, events_hash, has_gap })
    });
    delivered.collect()
}

/// Cells that execute requests of clients and write batches.
struct Cells {
    cells: [Cell<Book>; CELLS],
    clients: Clients,
    /// By cell: frames of the next batch.
    frames: [Vec<Vec<u8>>; CELLS],
    entries: Vec<Vec<Entry>>,
    records: Vec<Record>,
    now_ns: u64,
    /// By instrument: its cell.
    owners: [usize; INSTRUMENTS],
    leaving: Option<Leaving>,
    moves: u32,
    events: Events,
    /// Orders that were rejected by a limit of a firm.
    above_limits: usize,
}

/// By instrument and session: number and hash of the events.
type Events = BTreeMap<(u32, u32), (u64, u64)>;

/// An instrument whose copy was sent, and the requests that were executed since.
struct Leaving {
    id: MoveId,
    requests: Vec<u8>,
}

impl Cells {
    fn new() -> Cells {
        Cells {
            cells: [0, 1].map(|number| Cell::new(number, CELLS as u16)),
            clients: Clients::new(20, INSTRUMENTS as u32, 1, false),
            frames: Default::default(),
            entries: vec![vec![]; CELLS],
            records: vec![],
            now_ns: 0,
            owners: std::array::from_fn(|instrument| instrument % CELLS),
            leaving: None,
            moves: 0,
            events: Events::new(),
            above_limits: 0,
        }
    }

    /// Writes what waits as a batch, executes it, and gives clients their replies.
    fn flush(&mut self, at: usize) {
        if self.frames[at].is_empty() {
            return;
        }
        let index = self.entries[at].len() as u64 + 1;
        let mut bytes = vec![];
        batch::begin(self.now_ns, &mut bytes);
        self.cells[at].begin(index, self.now_ns);
        for frame in std::mem::take(&mut self.frames[at]) {
            bytes.extend_from_slice(&frame);
            self.execute(at, &frame);
        }
        self.entries[at].push(Entry { index, term: 1, kind: RecordKind::Batch, bytes });
        if index.is_multiple_of(20) {
            let (kind, index) = (RecordKind::Blank, index + 1);
            self.entries[at].push(Entry { index, term: 1, kind, bytes: vec![] });
        }
    }

    fn execute(&mut self, at: usize, bytes: &[u8]) {
        let cell = &mut self.cells[at];
        let frame = nm_wire::read(bytes).unwrap().unwrap();
        let request = match cell.admit(frame).unwrap() {
            Admitted::Request(request) => request,
            Admitted::Move(step) => {
                assert_ne!(step, MoveStep::Ignored);
                return;
            }
            Admitted::Firms(_) => return,
            Admitted::Retired(_)
            | Admitted::Watched
            | Admitted::Stopped(_)
            | Admitted::NotOwned
            | Admitted::Undecodable => {
                panic!("{frame:?}")
            }
        };
        let mut events = vec![];
        let handled = cell.handle(&request, |event| events.push(*event));
        let is_above = |event: &Event| matches!(event, Event::Rejected { most: 1.., .. });
        self.above_limits += events.iter().filter(|event| is_above(event)).count();
        for event in events {
            let mut code = vec![];
            codec::write_event(&event, &mut code);
            for user in event_recipients(&event, request.session) {
                let of = self.events.entry((request.instrument, user)).or_insert((0, FNV1A));
                *of = (of.0 + 1, fnv1a_on(of.1, &code));
            }
        }
        let (outcome, is_repeated) = match handled {
            Handled::Executed(outcome) => (outcome, false),
            Handled::Duplicate(Some(outcome)) => (outcome, true),
            other => panic!("{other:?}"),
        };
        if let Some(leaving) = &mut self.leaving
            && leaving.id.instrument == request.instrument
        {
            let (now_ns, check) = (cell.now_ns(), cell.last_check());
            Part::Request { now_ns, request, check }.put(&mut leaving.requests);
        }
        if request.session == DESK {
            return;
        }
        let reply = Message::Reply(Reply {
            instrument: request.instrument,
            session: request.session,
            client_seq: request.client_seq,
            output_seq: outcome.output_seq,
            previous_event: request.previous_seq,
            events_hash: outcome.events_hash,
            intended_ns: request.intended_ns,
            map_version: 0,
            gateway: 0,
            cell: 0,
            is_repeated,
            is_expired: false,
            events: Series::of(&[]),
        });
        self.records.extend(self.clients.receive(0, &reply, self.now_ns, &mut vec![]).1);
    }

    /// A batch of one frame.
    fn log(&mut self, at: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.flush(at);
        let mut bytes = vec![];
        write(&mut bytes);
        self.frames[at].push(bytes);
        self.flush(at);
    }

    fn parts(&self, id: MoveId, number: u64, parts: &[u8], out: &mut Vec<u8>) {
        let from = self.owners[id.instrument as usize];
        let (from, to) = (from as u16, (1 - from) as u16);
        let (attempt, parts) = (Attempt(9), Series::of(parts));
        nm_wire::write(&MoveParts { from, to, attempt, number, id, parts }, out);
    }

    /// The desk commands something on all instruments, each where it is.
    fn command_all(&mut self, command: Command) {
        for instrument in 0..INSTRUMENTS as u32 {
            let at = self.owners[instrument as usize];
            self.flush(at);
            let requests = self.cells[at].desk_requests(instrument, &[command], self.now_ns);
            self.log(at, |out| requests.iter().for_each(|it| nm_wire::write(it, out)));
        }
    }

    /// Sends a copy of an instrument to the other cell.
    fn begin_move(&mut self) {
        self.moves += 1;
        let instrument = self.moves % INSTRUMENTS as u32;
        let id = MoveId { instrument, epoch: self.moves };
        let from = self.owners[instrument as usize];
        self.flush(from);
        let cell = &mut self.cells[from];
        let mut parts = vec![];
        Part::Start { start: cell.begin_copy(instrument) }.put(&mut parts);
        loop {
            match cell.next_piece(instrument, 1 << 20) {
                Poll::Ready(Some(CopyPiece::Sessions(bytes))) => {
                    Part::Sessions { saved: Block(&bytes) }.put(&mut parts);
                }
                Poll::Ready(Some(CopyPiece::Book(bytes))) => {
                    Part::Book { saved: Block(&bytes) }.put(&mut parts);
                }
                Poll::Ready(None) => break,
                Poll::Pending => std::thread::yield_now(),
            }
        }
        Part::BookEnd.put(&mut parts);
        let mut frame = vec![];
        self.parts(id, 0, &parts, &mut frame);
        self.log(1 - from, |out| *out = frame);
        self.leaving = Some(Leaving { id, requests: vec![] });
    }

    /// Releases the instrument and lets the other cell adopt it.
    fn end_move(&mut self) {
        let Some(id) = self.leaving.as_ref().map(|leaving| leaving.id) else { return };
        let from = self.owners[id.instrument as usize];
        let to = 1 - from;
        self.log(from, |out| {
            nm_wire::write(&Release { cell: from as u16, to: to as u16, id }, out);
        });
        let mut parts = self.leaving.take().unwrap().requests;
        self.cells[from].put_end(id.instrument, &mut parts);
        let mut frame = vec![];
        self.parts(id, 1, &parts, &mut frame);
        self.log(to, |out| *out = frame);
        self.log(from, |out| nm_wire::write(&Forget { cell: from as u16, id }, out));
        self.owners[id.instrument as usize] = to;
    }
}

impl Run {
    /// Some thousand requests in batches of ten; some are retransmitted, some within one batch.
    pub fn new(durability: Durability) -> Run {
        Run::of(durability, false, None, false)
    }

    /// As [`Run::with_moves`], with a closing auction and orders for it.
    pub fn with_closing() -> Run {
        Run::of(Durability::MemoryQuorum, true, None, true)
    }

    /// The same, and instruments move to the other cell and back.
    pub fn with_moves(durability: Durability) -> Run {
        Run::of(durability, true, None, false)
    }

    /// The same, where a firm has limits, which reject some orders.
    fn with_firms(limits: FirmLimits) -> Run {
        Run::of(Durability::MemoryQuorum, true, Some(limits), false)
    }

    fn of(durability: Durability, moves: bool, limits: Option<FirmLimits>, closes: bool) -> Run {
        let sizes = Sizes::new(200, 200, 200).unwrap();
        let instruments = INSTRUMENTS as u32;
        let settings = Settings { sessions: 20, instruments, sizes, ..Settings::default() };
        let (mut orders, mut all) = (OrderGenerator::new(&settings), Cells::new());
        for (cell, limits) in limits.iter().flat_map(|limits| [(0, limits), (1, limits)]) {
            all.log(cell, |out| firms(cell, *limits, out));
        }
        for number in 0..3_000 {
            all.now_ns = number;
            match number % 100 {
                20 if moves => all.begin_move(),
                60 if moves => all.end_move(),
                _ => {}
            }
            match number {
                500 if closes => all.command_all(Command::ExpectClosing),
                1_130 if closes => all.command_all(Command::BeginClosing),
                1_650 if closes => all.command_all(Command::Uncross),
                _ => {}
            }
            let mut request = orders.next_request();
            if let Command::New(order) = &mut request.command
                && closes
                && number % 4 == 0
                && order.order_type == OrderType::Limit
            {
                let (time_in_force, post_only) = (TimeInForce::AtClose, PostOnly::No);
                *order = NewOrder { time_in_force, post_only, display: 0, minimum: 0, ..*order };
            }
            if let Command::New(order) = &mut request.command
                && closes
                && number % 8 == 2
                && order.order_type == OrderType::Limit
            {
                let (time_in_force, post_only) = (TimeInForce::GoodTillCancelled, PostOnly::No);
                let peg = if number % 16 == 2 { Peg::Mid } else { Peg::Primary { offset: 1 } };
                *order =
                    NewOrder { time_in_force, post_only, peg, display: 0, minimum: 0, ..*order };
            }
            let mut bytes = vec![];
            all.records.extend(all.clients.submit(&request, number, &mut bytes));
            let cell = all.owners[request.instrument as usize];
            all.frames[cell].push(bytes.clone());
            if number % 50 == 7 {
                all.frames[cell].push(bytes);
            }
            if all.frames[cell].len() >= 10 {
                all.flush(cell);
            }
        }
        assert_eq!(all.above_limits > 100, limits.is_some(), "{}", all.above_limits);
        let hashes = all.cells.iter().map(Cell::hash).collect();
        let folder = tempfile::tempdir().unwrap();
        let Cells { entries, mut records, events, clients, .. } = all;
        records.extend(clients.all_unanswered());
        records.extend(deliveries(&records, &events));
        Run { folder, durability, master: None, entries, hashes, records }
    }

    fn network(&self) -> Network {
        let mut port = 5000_u16;
        let counts: NodeCounts = "1-1-2-2".parse().unwrap();
        let mut network = Network::new(counts, |_| {
            port += 2;
            Node {
                address: format!("127.0.0.1:{port}").parse().unwrap(),
                replication: Some(nm_replica::Address::Tcp(([127, 0, 0, 1], port + 1).into())),
            }
        });
        network.durability = self.durability;
        network.data = Some(PathBuf::from("data"));
        network.record = true;
        network.master.clone_from(&self.master);
        network
    }

    pub fn journal(&self, node: NodeId, cell: usize, entries: &[Entry]) {
        let folder = self.folder_of(node, cell);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let settings = JournalSettings { file_bytes: 1 << 18 };
        let (mut journal, _) = Journal::open(&folder, settings, u64::MAX).unwrap();
        for entry in entries {
            journal.append(entry.index, entry.term, entry.kind, &entry.bytes).unwrap();
        }
        journal.flush().unwrap();
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes all files and verifies them.
    pub fn check(&self) -> Findings {
        let network = self.network();
        fs::write(self.path().join("network.toml"), network.to_toml().unwrap()).unwrap();
        for cell in 0..CELLS as u16 {
            for node in network.replicas(cell) {
                let entries = &self.entries[usize::from(cell)];
                self.journal(node, usize::from(cell), entries);
            }
        }
        self.check_again()
    }

    /// Writes the client log and the state hashes again, and verifies all files.
    pub fn check_again(&self) -> Findings {
        self.write_log();
        self.write_state_hashes();
        folder(self.path()).unwrap()
    }

    fn write_log(&self) {
        let mut log = Log::create(&self.path().join("client-0.log")).unwrap();
        self.records.iter().for_each(|record| log.add(record).unwrap());
        log.end().unwrap();
    }

    pub fn folder_of(&self, node: NodeId, cell: usize) -> PathBuf {
        self.path().join("data").join(node.file_name()).join(format!("cell-{cell}"))
    }

    /// Writes the hash of the last state of the first replica of each cell.
    fn write_state_hashes(&self) {
        for cell in 0..CELLS {
            let last =
                self.entries[cell].iter().rfind(|entry| entry.kind == RecordKind::Batch).unwrap();
            let folder = self.folder_of(Role::Mediator.node(cell as u16), cell);
            let _ = fs::remove_file(folder.join("hashes.jsonl"));
            StateHashes::open(&folder).unwrap().record(last.index, self.hashes[cell]).unwrap();
        }
    }

    /// Position of a batch of cell 0 that is neither at the beginning nor at the end.
    pub fn middle(&self) -> usize {
        let half = self.entries[0].len() / 2;
        half + self.entries[0][half..]
            .iter()
            .position(|entry| entry.kind == RecordKind::Batch)
            .unwrap()
    }
}

/// The entry of a cell's log by which some sessions belong to a firm.
fn firms(cell: usize, limits: FirmLimits, out: &mut Vec<u8>) {
    let sessions = vec![SessionRange { first: 1, last: 10 }];
    let firm = FirmRecord { number: 7, name: "A".to_string(), sessions, limits };
    let table = FirmTable { version: 1, firms: vec![firm] };
    nm_wire::write(&Firms { cell: cell as u16, table }, out);
}

const LIMITS: FirmLimits = FirmLimits {
    order_quantity: None,
    order_value: None,
    orders: Some(30),
    value: None,
    position: Some(60),
};

/// Replayed with other limits than the cell had, its orders have other outcomes.
#[test]
fn an_outcome_that_the_limits_of_a_firm_do_not_allow_is_found() {
    let mut run = Run::with_firms(LIMITS);
    let findings = run.check();
    assert!(findings.is_clean(), "{findings:?}");
    let cuts = folder_cut(run.path(), Cuts { count: 30, seed: 3 }).unwrap();
    assert!(cuts.is_clean(), "{cuts:?}");
    for other in
        [FirmLimits { orders: Some(29), ..LIMITS }, FirmLimits { position: Some(59), ..LIMITS }]
    {
        let entry = &mut run.entries[0][0].bytes;
        entry.truncate(batch::HEADER_BYTES);
        firms(0, other, entry);
        let findings = run.check();
        assert!(findings.count(Violation::WrongResult) > 0, "{other:?}: {findings:?}");
        assert!(findings.count(Violation::HashDiffers) > 0, "{other:?}: {findings:?}");
    }
}

/// Swaps two requests of a batch, whose frames all have the same size.
fn swap_frames(entry: &mut Entry, a: usize, b: usize) {
    let frame = |at: usize| batch::HEADER_BYTES + at * 200..batch::HEADER_BYTES + (at + 1) * 200;
    let (first, second) = (entry.bytes[frame(a)].to_vec(), entry.bytes[frame(b)].to_vec());
    entry.bytes[frame(a)].copy_from_slice(&second);
    entry.bytes[frame(b)].copy_from_slice(&first);
}

#[test]
fn a_run_without_faults_is_clean_with_every_durability() {
    for &durability in Durability::ALL {
        let run = Run::new(durability);
        run.check();
        Recording::open(run.path()).unwrap().seal().unwrap();
        let findings = folder(run.path()).unwrap();
        assert_eq!(findings.verdict(), Verdict::Proven, "{findings:?}");
        assert!(findings.notes.is_empty(), "{findings:?}");
        assert!(findings.executed > 2_900 && findings.answered == findings.executed);
        assert!(findings.sent >= findings.answered && findings.hashes == 6);
        let of_each = if durability == Durability::None { 1 } else { 3 };
        assert_eq!(findings.journals, 2 * of_each);
    }
}

/// An operator may have changed it while the network ran.
#[test]
fn orders_that_break_the_first_rules_and_that_no_gateway_marked_are_a_doubt() {
    let listing = |instrument: u32, most| Listing {
        instrument,
        symbol: format!("S{instrument}"),
        tick: "1".to_string(),
        lot: "1".to_string(),
        currency: String::new(),
        low: i64::MIN,
        high: i64::MAX,
        most,
    };
    let all = INSTRUMENTS as u32;
    for (listed, most, is_doubted) in
        [(all, u64::MAX, false), (all - 1, u64::MAX, true), (all, 1, true)]
    {
        let mut run = Run::new(Durability::None);
        let listings = (0..listed).map(|instrument| listing(instrument, most)).collect();
        run.master = Some(Arc::new(Master::of(listings).unwrap()));
        let findings = run.check();
        let why = "orders break rules of the instrument master that the network began with";
        let found = findings.doubts.iter().any(|doubt| doubt.contains(why));
        assert_eq!(found, is_doubted, "{listed} {most}: {findings:?}");
        assert!(findings.is_clean(), "{findings:?}");
    }
}

#[test]
fn missing_batches_are_reported_as_lost() {
    let mut run = Run::new(Durability::MemoryQuorum);
    run.hashes[0] ^= 1;
    assert_eq!(
        run.check().violations.into_iter().collect::<Vec<_>>(),
        [(Violation::HashDiffers, 1)]
    );
    run.hashes[0] ^= 1;
    let last = run.entries[0].iter().rposition(|entry| entry.kind == RecordKind::Batch).unwrap();
    run.entries[0][last].kind = RecordKind::Blank;
    let findings = run.check();
    assert!((9..=10).contains(&findings.count(Violation::Lost)), "{findings:?}");
    // In the middle, later requests are missing as well, or have other results.
    let middle = run.middle();
    run.entries[0][middle].kind = RecordKind::Blank;
    let findings = run.check();
    assert!(findings.count(Violation::Lost) > 10, "{findings:?}");
    assert!(
        findings.count(Violation::WrongResult) > 0 && findings.count(Violation::HashDiffers) > 0
    );
}

#[test]
fn another_order_of_requests_is_detected() {
    let mut run = Run::new(Durability::MemoryQuorum);
    let middle = run.middle();
    swap_frames(&mut run.entries[0][middle], 2, 3);
    swap_frames(&mut run.entries[0][middle], 4, 9);
    let findings = run.check();
    assert!(!findings.is_clean() && findings.count(Violation::WrongResult) > 0, "{findings:?}");
    let names_request = |sentence: &String| sentence.starts_with("wrong result: request ");
    assert!(findings.sentences.iter().any(names_request), "{:?}", findings.sentences);
}

#[test]
fn a_request_that_no_client_sent_is_detected() {
    let mut run = Run::new(Durability::None);
    let middle = run.middle();
    let bytes = &mut run.entries[0][middle].bytes;
    // Another price in the first request, with a valid checksum.
    let frame = nm_wire::read(&bytes[batch::HEADER_BYTES..]).unwrap().unwrap();
    let request: Request = frame.read().unwrap();
    let mut message = frame.message.to_vec();
    let command_at = message.len() - nm_wire::encode(&request.command).len();
    message[command_at + 9] ^= 1;
    let (mut other, is_stamped) = (vec![], frame.is_stamped());
    let shape = Shape { is_stamped, size_bytes: 200 };
    nm_wire::write_with(frame.code, shape, &mut other, |out| out.extend(message));
    bytes[batch::HEADER_BYTES..batch::HEADER_BYTES + 200].copy_from_slice(&other);
    let findings = run.check();
    assert_eq!(findings.count(Violation::NotSent), 1, "{findings:?}");
}

#[test]
fn a_reply_that_differs_from_the_journal_is_detected() {
    let mut run = Run::new(Durability::MemoryQuorum);
    let answers = |run: &mut Run, change: &dyn Fn(&mut Record)| {
        let mut answers =
            run.records.iter_mut().filter(|record| matches!(record, Record::Answered(_)));
        change(answers.nth(500).unwrap());
    };
    answers(&mut run, &|record| {
        if let Record::Answered(answered) = record {
            answered.events_hash ^= 1 << 40;
        }
    });
    let findings = run.check();
    assert_eq!(findings.count(Violation::WrongResult), 1, "{findings:?}");
    let again = run.records.iter().rfind(|record| matches!(record, Record::Answered(_)));
    let mut again = *again.unwrap();
    if let Record::Answered(answered) = &mut again {
        answered.output_seq += 1;
    }
    run.records.push(again);
    let findings = run.check_again();
    // It differs from the other one, and the client waited for one only.
    assert_eq!(findings.count(Violation::Twice), 2, "{findings:?}");
}

#[test]
fn too_few_copies_on_disk_are_detected_but_uncommitted_entries_accepted() {
    let run = Run::new(Durability::DiskQuorum);
    let complete = &run.entries[0];
    let length = complete.len();
    run.check();
    // Two of three replicas have all entries, which is a quorum.
    run.journal(Role::Processor.node(0), 0, &complete[..length - 3]);
    assert!(run.check_again().is_clean());
    // Only one has all entries of answered requests.
    run.journal(Role::Mediator.node(1), 0, &complete[..length - 2]);
    let findings = run.check_again();
    assert_eq!(findings.violations.keys().collect::<Vec<_>>(), [&Violation::TooFewCopies]);
    // A former leader has uncommitted entries at the end.
    run.journal(Role::Processor.node(0), 0, complete);
    let mut end = complete[..length - 10].to_vec();
    end.push(Entry { index: end.len() as u64 + 1, ..complete[3].clone() });
    run.journal(Role::Mediator.node(1), 0, &end);
    let findings = run.check_again();
    assert!(findings.is_clean(), "{findings:?}");
    // Entries after them must not agree with the others again.
    end.extend_from_slice(&complete[length - 9..]);
    run.journal(Role::Mediator.node(1), 0, &end);
    let findings = run.check_again();
    assert_eq!(findings.count(Violation::Diverged), 1, "{findings:?}");
}

#[test]
fn replicas_with_other_batches_are_detected() {
    let run = Run::new(Durability::MemoryQuorum);
    run.check();
    let mut other = run.entries[0].clone();
    let middle = run.middle();
    swap_frames(&mut other[middle], 0, 1);
    run.journal(Role::Processor.node(0), 0, &other);
    let findings = run.check_again();
    assert_eq!(findings.count(Violation::Diverged), 1, "{findings:?}");
    // A replica may start later or miss a part if another replica has it.
    run.journal(Role::Processor.node(0), 0, &run.entries[0][middle..]);
    let mut missed = run.entries[0].clone();
    for entry in &mut missed[..middle] {
        (entry.kind, entry.bytes) = (RecordKind::Missed, vec![]);
    }
    run.journal(Role::Mediator.node(1), 0, &missed);
    assert!(run.check_again().is_clean());
    run.journal(Role::Mediator.node(0), 0, &missed);
    let findings = run.check_again();
    assert!(
        findings.count(Violation::Gap) > 0 && findings.count(Violation::Lost) > 0,
        "{findings:?}"
    );
}

#[test]
fn a_mediator_without_durability_may_lose_its_state_and_it_is_noted() {
    let mut run = Run::new(Durability::None);
    let middle = run.middle();
    for entry in &mut run.entries[0][middle..] {
        entry.term = 2;
    }
    let findings = run.check();
    // Its books are empty from there on, so clients received other results: not guaranteed.
    assert!(findings.not_guaranteed[&Violation::WrongResult] > 0, "{findings:?}");
    assert!(findings.notes.iter().any(|note| note.contains("empty books")), "{findings:?}");
    let kinds: Vec<&Violation> = findings.violations.keys().collect();
    assert_eq!(kinds, [&Violation::HashDiffers], "the recorded state is that of one incarnation");
}

/// Replaying from a snapshot at any position, with either book, leads to the same state as the run.
#[test]
fn replay_from_a_snapshot_at_any_position_leads_to_the_same_state() {
    let run = Run::new(Durability::MemoryQuorum);
    run.check();
    let findings = folder_cut(run.path(), Cuts { count: 300, seed: 3 }).unwrap();
    assert!(findings.is_clean(), "{findings:?}");
    assert_eq!(findings.cuts, 300 * CELLS as u64);
}

/// With several incarnations, a snapshot is replayed to the end of its own.
#[test]
fn snapshots_are_checked_in_each_incarnation_of_a_journal() {
    let mut run = Run::new(Durability::None);
    let middle = run.middle();
    for entry in &mut run.entries[0][middle..] {
        entry.term = 2;
    }
    run.hashes[0] = 0;
    let checked = run.check();
    let findings = folder_cut(run.path(), Cuts { count: 20, seed: 4 }).unwrap();
    assert_eq!(findings.cuts, 20 * 3);
    assert_eq!(findings.violations, checked.violations, "{findings:?}");
}

/// Runs a single replica that orders these batches, and takes snapshots so early that it deletes
/// the beginning of its journal.
fn run_replica(folder: &Path, entries: &[Entry]) {
    let listen = nm_replica::Address::Unix(folder.with_extension("socket"));
    let members = vec![Member { address: listen.clone(), may_lead: true }];
    let journal = JournalSettings { file_bytes: 64 << 10 };
    let settings = nm_replica::Settings {
        snapshot_bytes: 64 << 10,
        journal,
        ..nm_replica::Settings::default()
    };
    let group = Group {
        id: 0,
        name: "cell-0".to_string(),
        members,
        voters: 1,
        own: 0,
        folder: Some(folder.to_path_buf()),
        settings,
    };
    let (waker, mut poller) = (Waker::new().unwrap(), Poller::new().unwrap());
    poller.add(&waker, 0, Interest::Readable).unwrap();
    let (thread, mut logs) = Replicas::start(&listen, vec![group], vec![], waker.clone()).unwrap();
    let (mut log, mut cell) = (logs.pop().unwrap(), Cell::<Book>::default());
    let mut batches = entries.iter().filter(|entry| entry.kind == RecordKind::Batch);
    let (mut left, mut snapshots) = (batches.clone().count(), 0);
    let is_truncated = || {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let journals = names.filter(|path| path.extension().is_some_and(|e| e == "journal"));
        journals.filter_map(|path| path.file_stem()?.to_str()?.parse::<u64>().ok()).min() > Some(1)
    };
    let deadline = Deadline::after(Duration::from_secs(60));
    while left > 0 || snapshots == 0 || !is_truncated() {
        assert!(!deadline.passed(), "{left} batches left, {snapshots} snapshots");
        poller.wait(&mut vec![], Some(Duration::from_millis(2))).unwrap();
        waker.drain();
        while let Some(event) = log.next_event() {
            match event {
                LogEvent::Committed { index, batch, .. } => {
                    apply(&mut cell, index, &batch);
                    left -= 1;
                }
                LogEvent::TakeSnapshot { number } => {
                    cell.begin_snapshot();
                    let state = std::iter::repeat_with(|| cell.copy_next()).flatten().next();
                    log.finish_snapshot(number, state.unwrap());
                    snapshots += 1;
                }
                _ => {}
            }
        }
        while log.can_propose()
            && let Some(next) = batches.next()
        {
            log.propose(next.bytes.clone()).unwrap();
        }
    }
    StateHashes::open(folder).unwrap().record(cell.index(), cell.hash()).unwrap();
    drop(thread);
}

fn apply<M: Matching>(cell: &mut Cell<M>, index: u64, batch: &[u8]) {
    let (time_ns, frames) = batch::decode(batch).unwrap();
    cell.begin(index, time_ns);
    for frame in frames {
        cell.handle(&frame.unwrap().read::<Request>().unwrap(), |_| {});
    }
}

#[test]
fn a_truncated_journal_is_replayed_from_the_snapshot() {
    let mut run = Run::new(Durability::DiskQuorum);
    run.check();
    let own = run.folder_of(Role::Mediator.node(0), 0);
    for node in [Role::Mediator.node(0), Role::Mediator.node(1), Role::Processor.node(0)] {
        fs::remove_dir_all(run.folder_of(node, 0)).unwrap();
    }
    run_replica(&own, &run.entries[0]);
    let findings = folder_cut(run.path(), Cuts { count: 5, seed: 1 }).unwrap();
    assert!(findings.is_clean(), "{findings:?}");
    assert!(findings.in_snapshots > 100, "{findings:?}");
    assert!(findings.notes[0].contains("from the snapshot of mediator 0,"), "{findings:?}");
    // Replies to requests after the snapshot are still compared with the journal.
    let answer = run.records.iter_mut().rfind(|record| {
        matches!(record, Record::Answered(answered) if answered.name.instrument.is_multiple_of(2))
    });
    let Some(Record::Answered(answered)) = answer else { panic!("nothing was answered") };
    answered.events_hash ^= 1;
    run.write_log();
    let findings = folder(run.path()).unwrap();
    assert_eq!(findings.violations.keys().collect::<Vec<_>>(), [&Violation::WrongResult]);
    // Without the snapshot there is a gap.
    fs::remove_file(own.join("snapshot")).unwrap();
    let findings = folder(run.path()).unwrap();
    assert!(findings.count(Violation::Gap) > 0, "{findings:?}");
}

#[test]
fn a_state_hash_that_differs_from_the_journals_is_detected() {
    let run = Run::new(Durability::MemoryQuorum);
    run.check();
    let mut hashes = StateHashes::open(&run.folder_of(Role::Processor.node(0), 0)).unwrap();
    hashes.record(1_000_000, 1).unwrap();
    hashes.record(9, 1).unwrap();
    let findings = folder(run.path()).unwrap();
    let found: Vec<_> = findings.violations.into_iter().collect();
    assert_eq!(found, [(Violation::Gap, 1), (Violation::HashDiffers, 1)]);
    let names_replica = |sentence: &String| sentence.contains("processor 0 ");
    assert_eq!(findings.sentences.iter().filter(|s| names_replica(s)).count(), 2);
}

#[test]
fn incomplete_folders_are_refused() {
    let run = Run::new(Durability::None);
    let refused = |why: &str| {
        let message = folder(run.path()).unwrap_err().to_string();
        assert!(message.contains(why), "{message}");
    };
    refused("network.toml");
    run.check();
    fs::write(run.folder_of(Role::Mediator.node(0), 0).join("hashes.jsonl"), "{}").unwrap();
    let findings = folder(run.path()).unwrap();
    assert_eq!(findings.verdict(), Verdict::Damaged, "{findings:?}");
    assert!(findings.damage[0].contains("hashes.jsonl cannot be read"), "{findings:?}");
    fs::remove_dir_all(run.path().join("data/mediator-0")).unwrap();
    let doubted = |why: &str| {
        let findings = folder(run.path()).unwrap();
        assert_eq!(findings.verdict(), Verdict::Doubtful, "{findings:?}");
        assert!(findings.doubts.iter().any(|doubt| doubt.contains(why)), "{findings:?}");
    };
    doubted("no journal of cell 0");
    let log = run.path().join("client-0.log");
    let bytes = fs::read(&log).unwrap();
    fs::write(&log, &bytes[..bytes.len() - 1]).unwrap();
    let findings = folder(run.path()).unwrap();
    assert_eq!(findings.verdict(), Verdict::Damaged, "{findings:?}");
    assert!(findings.damage[0].contains("cut or damaged"), "{findings:?}");
    fs::write(&log, "").unwrap();
    doubted("client-0.log is empty");
    fs::File::create(&log).unwrap().set_len(CLIENT_LOG_BYTES_MAX + 1).unwrap();
    refused("it has more than 32000000000 bytes");
    fs::remove_file(&log).unwrap();
    doubted("no client*.log");
}

/// Every file of a folder, below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for path in files(from) {
        let copied = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(copied.parent().unwrap()).unwrap();
        fs::copy(&path, &copied).unwrap();
    }
}

/// A copy is judged by its own files, whichever is damaged, and the original is not looked at.
#[test]
fn each_damaged_file_of_a_copied_recording_is_found() {
    let run = Run::new(Durability::MemoryQuorum);
    run.check();
    Recording::open(run.path()).unwrap().seal().unwrap();
    let place = tempfile::tempdir().unwrap();
    let moved = place.path().join("copy");
    copy(run.path(), &moved);
    assert_eq!(folder(&moved).unwrap().verdict(), Verdict::Proven);
    let all = files(&moved);
    // Network, manifest, client log, six journals of some files, and two files of hashes.
    assert!(all.len() >= 11, "{all:?}");
    for path in all {
        let intact = fs::read(&path).unwrap();
        let mut flipped = intact.clone();
        flipped[intact.len() / 2] ^= 1;
        let longer = [&intact[..], b"x"].concat();
        for content in [Some(&intact[..intact.len() - 1]), Some(&flipped), Some(&longer), None] {
            match content {
                Some(content) => fs::write(&path, content).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let length = content.map(<[u8]>::len);
            let found = folder(&moved).map(|findings| findings.verdict());
            let is_found = !matches!(found, Ok(Verdict::Proven));
            assert!(is_found, "{} with {length:?} bytes: {found:?}", path.display());
        }
        fs::write(&path, &intact).unwrap();
    }
    fs::write(moved.join("data/mediator-0/cell-0/999.journal"), "").unwrap();
    let findings = folder(&moved).unwrap();
    assert_eq!((findings.verdict(), findings.damage.len()), (Verdict::Damaged, 1), "{findings:?}");
}

/// Earlier versions wrote the absolute path of the original's journals into the network's file.
#[test]
fn journals_of_another_folder_do_not_prove_a_recording() {
    let run = Run::new(Durability::MemoryQuorum);
    run.check();
    let data = run.path().join("data");
    let network = Network { data: Some(data.clone()), ..run.network() };
    fs::write(run.path().join("network.toml"), network.to_toml().unwrap()).unwrap();
    let place = tempfile::tempdir().unwrap();
    copy(run.path(), place.path());
    let findings = folder(place.path()).unwrap();
    assert!(findings.is_clean(), "{findings:?}");
    assert!(findings.notes.iter().any(|note| note.contains(data.to_str().unwrap())));
    for path in files(&place.path().join("data")) {
        fs::write(path, b"damaged").unwrap();
    }
    assert_eq!(folder(place.path()).unwrap().verdict(), Verdict::Damaged);
    fs::remove_dir_all(place.path().join("data")).unwrap();
    let findings = folder(place.path()).unwrap();
    assert!(findings.doubts.iter().any(|it| it.contains("there is no journal of cell 0")));
    assert!(folder(run.path()).unwrap().is_clean());
    let network = Network { data: Some("../original".into()), ..run.network() };
    fs::write(place.path().join("network.toml"), network.to_toml().unwrap()).unwrap();
    let message = folder(place.path()).unwrap_err().to_string();
    assert!(message.contains("leads out of the recording"), "{message}");
    std::os::unix::fs::symlink(&data, place.path().join("data")).unwrap();
    let message = folder(place.path()).unwrap_err().to_string();
    assert!(message.contains("data is a symbolic link"), "{message}");
}

/// A killed run leaves no manifest: what is there is checked, and that it may not be all is said.
#[test]
fn missing_evidence_of_a_killed_run_is_a_doubt() {
    let run = Run::new(Durability::MemoryQuorum);
    let findings = run.check();
    assert_eq!(findings.verdict(), Verdict::Doubtful, "{findings:?}");
    assert!(findings.doubts[0].starts_with("there is no manifest"), "{findings:?}");
    let own = run.folder_of(Role::Processor.node(1), 1);
    for path in files(&own) {
        fs::remove_file(path).unwrap();
    }
    let findings = folder(run.path()).unwrap();
    assert_eq!(findings.doubts[1..], ["cell 1: there is no journal of processor 1"]);
    // Recorded states without any journal contradict it.
    StateHashes::open(&own).unwrap().record(9, 1).unwrap();
    let findings = folder(run.path()).unwrap();
    assert_eq!(findings.count(Violation::Gap), 1, "{findings:?}");
}
