//! The agent of a run on one of its hosts: starts nodes, passes on what they write, and leaves
//! nothing behind.
//!
//! It is started by ssh, reads requests from its input and writes reports to its output
//! (`hosts::protocol`). It ends its nodes and removes its folder when its input ends, which is when
//! the run ends for any reason. It does so too when the run has been silent for too long, which is
//! when the host is cut off from it. A thread writes its reports, so a run that does not read them
//! keeps nothing on the host. A folder that an agent left when it was killed is removed by the next
//! one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use nm_exchange::network::NodeId;
use nm_exchange::output_queue::OutputQueue;
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use nm_sys::private_folder::{self, PrivateFolder};
use nm_sys::process::ChildProcess;
use nm_verify::recording::{DATA, NETWORK};

use crate::bounded_lines::BoundedLines;
use crate::hosts::SECRET;
use crate::hosts::protocol::{
    END_LIMIT, REPORTS_BYTES_MAX, Report, Request, SILENCE_LIMIT, VERSION, WRITE_LIMIT,
};

/// How the name of an agent's folder begins.
const FOLDER: &str = "run-";

/// Events that wait for the agent. Nodes that write more are not read meanwhile.
const EVENTS_WAITING_MAX: usize = 1024;

/// What the agent handles.
enum Event {
    Request(Request),
    /// Its input has ended.
    InputEnded,
    Report(Report),
}

struct Node {
    start: u32,
    process: ChildProcess,
    stdin: Option<ChildStdin>,
    has_ended: bool,
}

/// The agent.
struct Agent<'a> {
    program: &'a Path,
    folder: &'a Path,
    output: &'a OutputQueue<String>,
    nodes: BTreeMap<usize, Node>,
    events: SyncSender<Event>,
}

/// Runs an agent until `input` ends or is silent for too long. `program` is nearmetal, and the
/// agent's folder is made in `parent`.
///
/// # Errors
/// If the folder cannot be made, or a request cannot be read or carried out.
pub fn run(
    program: &Path,
    parent: &Path,
    input: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), Failure> {
    run_with(program, parent, input, output, Bounds::STANDARD)
}

/// What an agent grants its run.
struct Bounds {
    /// Silence after which it ends.
    silence: Duration,
    /// Bytes of reports that wait until they are read.
    reports_bytes: usize,
}

impl Bounds {
    const STANDARD: Bounds = Bounds { silence: SILENCE_LIMIT, reports_bytes: REPORTS_BYTES_MAX };
}

fn run_with(
    program: &Path,
    parent: &Path,
    input: impl BufRead + Send + 'static,
    mut output: impl Write + Send + 'static,
    bounds: Bounds,
) -> Result<(), Failure> {
    private_folder::claim(parent).map_err(|error| system(&error))?;
    private_folder::remove_abandoned(parent, FOLDER);
    let folder = PrivateFolder::create(parent, FOLDER).map_err(|error| system(&error))?;
    let (sender, events) = sync_channel(EVENTS_WAITING_MAX);
    let requests = sender.clone();
    let read = move || read_requests(input, &requests);
    thread::Builder::new().name("input".into()).spawn(read).map_err(|error| system(&error))?;
    // If the run has gone, the input ends as well.
    let write = move |line: &String| {
        let _ = writeln!(output, "{line}").and_then(|()| output.flush());
    };
    let dropped = |count| Report::Dropped { count }.line();
    let output = OutputQueue::start(bounds.reports_bytes, write, dropped);
    let output = output.map_err(|error| system(&error))?;
    let nodes = BTreeMap::new();
    let mut agent =
        Agent { program, folder: folder.path(), output: &output, nodes, events: sender };
    agent.report(Report::Ready {
        version: VERSION.to_string(),
        folder: folder.path().to_path_buf(),
    });
    let handled = agent.handle_all(&events, bounds.silence);
    agent.end(&events);
    // The secret goes before anything waits for a reader.
    drop(folder);
    output.end(WRITE_LIMIT);
    handled
}

fn system(error: &dyn std::error::Error) -> Failure {
    Failure::new(FailureKind::System, error.to_string())
}

/// Passes the requests on, until the input ends or has a line that is none.
fn read_requests(input: impl BufRead, requests: &SyncSender<Event>) {
    for line in BoundedLines::new(input) {
        let Ok(request) = serde_json::from_str(&line) else { break };
        if requests.send(Event::Request(request)).is_err() {
            return;
        }
    }
    let _ = requests.send(Event::InputEnded);
}

impl Agent<'_> {
    /// Handles events until the input ends or is silent for too long.
    fn handle_all(
        &mut self,
        events: &Receiver<Event>,
        silence_limit: Duration,
    ) -> Result<(), Failure> {
        let mut deadline = Deadline::after(silence_limit);
        loop {
            // What nodes write does not count: they go on writing when the run is cut off.
            let event = match deadline.passed() {
                true => Err(RecvTimeoutError::Timeout),
                false => events.recv_timeout(deadline.remaining()),
            };
            match event {
                Ok(Event::Request(request)) => {
                    deadline = Deadline::after(silence_limit);
                    self.handle(request)?;
                }
                Ok(Event::Report(report)) => self.pass_on(report),
                Ok(Event::InputEnded) => return Ok(()),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let seconds = silence_limit.as_secs();
                    let message = format!(
                        "the run was silent for {seconds} s, so its nodes on this host are ended"
                    );
                    return Err(Failure::new(FailureKind::Peer, message));
                }
            }
        }
    }

    fn handle(&mut self, request: Request) -> Result<(), Failure> {
        match request {
            Request::Files { network, secret } => self.keep(&network, &secret),
            Request::Start { slot, start, node } => self.start(slot, start, node),
            Request::Kill { slot } => {
                if let Some(node) = self.nodes.get_mut(&slot) {
                    node.process.kill();
                }
                Ok(())
            }
            Request::End { slot } => {
                if let Some(node) = self.nodes.get_mut(&slot) {
                    node.stdin = None;
                }
                Ok(())
            }
            Request::Stop => {
                self.nodes.values_mut().for_each(|node| node.stdin = None);
                Ok(())
            }
            Request::Alive => {
                self.report(Report::Alive);
                Ok(())
            }
        }
    }

    fn network_file(&self) -> PathBuf {
        self.folder.join(NETWORK)
    }

    fn keep(&self, network: &str, secret: &str) -> Result<(), Failure> {
        // The folder is of this user alone; the secret's file must be, too.
        private_folder::claim(&self.folder.join(DATA)).map_err(|error| system(&error))?;
        fs::write(self.network_file(), network).map_err(|error| system(&error))?;
        if !secret.is_empty() {
            let path = self.folder.join(SECRET);
            nm_auth::create_private(&path, secret).map_err(|error| system(&error))?;
        }
        Ok(())
    }

    fn start(&mut self, slot: usize, start: u32, node: NodeId) -> Result<(), Failure> {
        // What ran before is killed when it is replaced; its port and journal are free then.
        self.nodes.remove(&slot);
        let mut command = Command::new(self.program);
        command.args(["exchange", "node", "--role", node.class.name()]);
        command.args(["--index", &node.index.to_string()]);
        command.arg("--network").arg(self.network_file());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failure = |error: io::Error| {
            let message = format!("cannot start {node}: {error}");
            Failure::new(FailureKind::System, message)
        };
        let mut process = ChildProcess::spawn(command).map_err(failure)?;
        let stdin = process.take_stdin();
        let piped = process.take_stdout().zip(process.take_stderr());
        let (stdout, stderr) = piped.ok_or_else(|| failure(io::Error::other("no output")))?;
        let reports = self.events.clone();
        let logs = self.events.clone();
        let read_log = move || {
            for text in BoundedLines::new(BufReader::new(stderr)) {
                let _ = logs.send(Event::Report(Report::Log { slot, text }));
            }
        };
        let log = thread::Builder::new().name(format!("log {node}")).spawn(read_log);
        let log = log.map_err(failure)?;
        let read_output = move || {
            for line in BoundedLines::new(BufReader::new(stdout)) {
                // A line that is not JSON is not a message.
                let Ok(line) = serde_json::from_str(&line) else { continue };
                let _ = reports.send(Event::Report(Report::Node { slot, start, line }));
            }
            let _ = log.join();
            let _ = reports.send(Event::Report(Report::Ended { slot, start }));
        };
        let read = thread::Builder::new().name(format!("out {node}")).spawn(read_output);
        read.map_err(failure)?;
        self.nodes.insert(slot, Node { start, process, stdin, has_ended: false });
        Ok(())
    }

    /// Passes a report of a node on; its end when its process has ended.
    fn pass_on(&mut self, report: Report) {
        if let Report::Ended { slot, start } = &report {
            let Some(node) = self.nodes.get_mut(slot) else { return };
            if node.start == *start {
                // Its output has ended, so it is about to exit.
                node.process.wait_timeout(END_LIMIT);
                node.process.kill();
                node.has_ended = true;
            }
        }
        self.report(report);
    }

    /// Has a report written, if there is room for it.
    fn report(&self, report: Report) {
        let line = report.line();
        let bytes = line.len();
        match report {
            // As many as starts, which the run has asked for.
            Report::Ready { .. } | Report::Ended { .. } => self.output.push_always(line, bytes),
            _ => self.output.push(line, bytes),
        }
    }

    /// Ends all nodes, first by closing their inputs.
    fn end(&mut self, events: &Receiver<Event>) {
        self.nodes.values_mut().for_each(|node| node.stdin = None);
        let deadline = Deadline::after(END_LIMIT);
        while self.nodes.values().any(|node| !node.has_ended) && !deadline.passed() {
            match events.recv_timeout(deadline.remaining()) {
                Ok(Event::Report(report)) => self.pass_on(report),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        // Kills those that are left.
        self.nodes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_exchange::network::Role;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    /// A program in place of nearmetal: shows its words and files, waits for the end of its input,
    /// and reports it.
    const PROGRAM: &str = "#!/bin/sh\n\
        d=$(dirname \"$8\")\n\
        echo '{\"event\":\"started\",\"words\":\"'$*'\"}'\n\
        echo \"network $(cat \"$d/network.toml\") secret $(cat \"$d/secret\")\" >&2\n\
        echo \"mode $(stat -c %a \"$d\" \"$d/secret\" | tr '\\n' ' ')\" >&2\n\
        touch \"$d/data/journal\"\n\
        cat > /dev/null\n\
        echo '{\"event\":\"end\"}'\n";

    struct Place {
        folder: tempfile::TempDir,
        program: PathBuf,
    }

    fn place() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("it's a program");
        fs::write(&program, PROGRAM).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
        Place { folder, program }
    }

    impl Place {
        fn parent(&self) -> PathBuf {
            self.folder.path().join("of runs")
        }

        fn left(&self) -> usize {
            fs::read_dir(self.parent()).unwrap().count()
        }
    }

    fn requests(all: &[Request]) -> String {
        let line = |request| serde_json::to_string(request).unwrap() + "\n";
        all.iter().map(line).collect()
    }

    fn files() -> Request {
        Request::Files { network: "of ours".into(), secret: "key".into() }
    }

    const START: Request = Request::Start { slot: 4, start: 1, node: Role::Router.node(3) };

    /// What an agent has written.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Output {
        fn reports(&self) -> Vec<Report> {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        }
    }

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nodes_get_their_files_and_end_with_the_input_and_nothing_is_left() {
        let place = place();
        // Left by an agent that was killed.
        let parent = place.parent();
        private_folder::claim(&parent).unwrap();
        let abandoned = PrivateFolder::create(&parent, FOLDER).unwrap();
        let copy = parent.join(format!("{FOLDER}00000000000000aa"));
        private_folder::claim(&copy).unwrap();
        drop(abandoned);
        let output = Output::default();
        let input = io::Cursor::new(requests(&[files(), START, Request::Alive]));
        run(&place.program, &parent, input, output.clone()).unwrap();
        let reports = output.reports();
        let Report::Ready { version, folder } = &reports[0] else { panic!("{reports:?}") };
        assert_eq!(version, VERSION);
        assert!(folder.starts_with(&parent), "{folder:?}");
        assert!(reports.contains(&Report::Alive), "{reports:?}");
        let lines: Vec<String> = reports
            .iter()
            .filter_map(|report| match report {
                Report::Node { slot: 4, start: 1, line } => Some(line.to_string()),
                Report::Log { slot: 4, text } => Some(text.clone()),
                _ => None,
            })
            .collect();
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(has("exchange node --role router --index 3 --network"), "{lines:?}");
        assert!(has("network of ours secret key"), "{lines:?}");
        assert!(has("mode 700 600"), "{lines:?}");
        assert!(has(r#""event":"end""#), "{lines:?}");
        assert_eq!(reports.last(), Some(&Report::Ended { slot: 4, start: 1 }));
        assert_eq!(place.left(), 0, "the folder goes with the agent, and so did the old one");
    }

    /// It ends while the input is open; at the end of the input all nodes would.
    #[test]
    fn one_node_ends_when_it_is_asked_to() {
        let place = place();
        let ((mut input, far), (output, agent)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        output.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let other = Request::Start { slot: 5, start: 1, node: Role::Router.node(0) };
        let all = requests(&[files(), START, other, Request::End { slot: 4 }]);
        input.write_all(all.as_bytes()).unwrap();
        thread::scope(|scope| {
            let parent = place.parent();
            let program = &place.program;
            let far = BufReader::new(far);
            scope.spawn(move || run(program, &parent, far, agent).unwrap());
            let lines = BufReader::new(&output).lines().map(|line| line.unwrap());
            let mut reports = lines.map(|line| serde_json::from_str::<Report>(&line).unwrap());
            let ended = reports.find(|report| matches!(report, Report::Ended { .. }));
            drop(input);
            assert_eq!(ended, Some(Report::Ended { slot: 4, start: 1 }));
            assert!(reports.any(|report| report == Report::Ended { slot: 5, start: 1 }));
        });
    }

    #[test]
    fn a_killed_node_ends_and_another_start_replaces_it() {
        let place = place();
        let again = Request::Start { slot: 4, start: 2, node: Role::Router.node(3) };
        let output = Output::default();
        let all = requests(&[files(), START, Request::Kill { slot: 4 }, again, Request::Stop]);
        run(&place.program, &place.parent(), io::Cursor::new(all), output.clone()).unwrap();
        let reports = output.reports();
        assert!(reports.contains(&Report::Ended { slot: 4, start: 2 }), "{reports:?}");
        let reported_end = |wanted: u32| {
            reports.iter().any(|report| match report {
                Report::Node { start, line, .. } => *start == wanted && line["event"] == "end",
                _ => false,
            })
        };
        assert!(!reported_end(1) && reported_end(2), "a killed node reports nothing: {reports:?}");
    }

    #[test]
    fn an_agent_that_receives_nothing_ends_its_nodes_and_removes_its_folder() {
        let place = place();
        let (output, (reader, mut writer)) = (Output::default(), io::pipe().unwrap());
        writer.write_all(requests(&[files(), START]).as_bytes()).unwrap();
        let input = BufReader::new(reader);
        let limit = Duration::from_millis(1500);
        let bounds = Bounds { silence: limit, ..Bounds::STANDARD };
        let failure =
            run_with(&place.program, &place.parent(), input, output.clone(), bounds).unwrap_err();
        assert!(failure.message.contains("silent for 1 s"), "{failure}");
        let reports = output.reports();
        assert_eq!(reports.last(), Some(&Report::Ended { slot: 4, start: 1 }), "{reports:?}");
        assert_eq!(place.left(), 0);
    }

    #[test]
    fn a_line_that_is_no_request_ends_the_agent() {
        let place = place();
        let output = Output::default();
        let input = io::Cursor::new(requests(&[files(), START]) + "{\"ask\":\"more\"}\n");
        run(&place.program, &place.parent(), input, output.clone()).unwrap();
        assert_eq!(output.reports().last(), Some(&Report::Ended { slot: 4, start: 1 }));
        assert_eq!(place.left(), 0);
    }

    /// An output that nobody reads until the other end is dropped.
    struct Unread(Receiver<()>, Output);

    impl Write for Unread {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const CHATTY: &str = "#!/bin/sh\n\
        yes 01234567 >&2 &\n\
        cat > /dev/null\n\
        kill $!\n";

    #[test]
    fn an_agent_whose_reports_nobody_reads_removes_its_secret_and_ends() {
        let place = place();
        // Its nodes write for as long as they live.
        fs::write(&place.program, CHATTY).unwrap();
        let (unread, stopped) = channel();
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(requests(&[files(), START]).as_bytes()).unwrap();
        let output = Unread(stopped, Output::default());
        let (program, parent) = (place.program.clone(), place.parent());
        let (ended, has_ended) = channel();
        let agent = thread::spawn(move || {
            let bounds = Bounds { silence: Duration::from_millis(500), ..Bounds::STANDARD };
            let _ = ended.send(run_with(&program, &parent, BufReader::new(reader), output, bounds));
        });
        // A run would count the host as lost by then.
        let failure = has_ended.recv_timeout(SILENCE_LIMIT).expect("the agent ends").unwrap_err();
        assert!(failure.message.contains("silent"), "{failure}");
        assert_eq!(place.left(), 0, "the secret is gone");
        drop(unread);
        agent.join().unwrap();
    }

    #[test]
    fn a_run_learns_how_many_reports_found_no_room_and_of_each_end() {
        let place = place();
        let output = Output::default();
        let all = requests(&[files(), START, Request::Alive]);
        let (program, parent, input) = (&place.program, place.parent(), io::Cursor::new(all));
        let bounds = Bounds { reports_bytes: 0, ..Bounds::STANDARD };
        run_with(program, &parent, input, output.clone(), bounds).unwrap();
        let reports = output.reports();
        let dropped = reports.iter().filter_map(|report| match report {
            Report::Dropped { count } => Some(*count),
            Report::Ready { .. } | Report::Ended { slot: 4, start: 1 } => None,
            other => panic!("there was no room for {other:?}"),
        });
        // The answer to `Alive`, and four lines of the program.
        assert_eq!(dropped.sum::<u64>(), 5, "{reports:?}");
        assert!(reports.contains(&Report::Ended { slot: 4, start: 1 }), "{reports:?}");
    }

    #[test]
    fn what_nodes_write_keeps_no_agent_beyond_the_silence_of_its_run() {
        let place = place();
        let (sender, events) = sync_channel(EVENTS_WAITING_MAX);
        for _ in 0..100 {
            sender.send(Event::Report(Report::Log { slot: 0, text: "more".into() })).unwrap();
        }
        let output = OutputQueue::start(0, |_| {}, |_| String::new()).unwrap();
        let (program, folder) = (&*place.program, place.folder.path());
        let mut agent =
            Agent { program, folder, output: &output, nodes: BTreeMap::new(), events: sender };
        agent.handle_all(&events, Duration::ZERO).unwrap_err();
        assert_eq!(events.try_iter().count(), 100, "it handles what they write, and does not end");
    }
}
