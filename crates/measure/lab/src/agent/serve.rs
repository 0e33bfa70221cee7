//! The agent's end: reads requests as lines, runs one task at a time in a thread of its own, and
//! writes answers.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use nm_model::agent::{LINE_BYTES_MAX, PROTOCOL_VERSION, Stage, Task, TaskReport, Token};
use nm_model::{Answer, Failure, FailureKind, Request, Side};
use nm_probe::{Control, Endpoint};
use nm_sys::clock::Moment;

use crate::agent::lines::{Line, Lines};
use crate::agent::peer_filter::PeerFilter;
use crate::agent::samples;
use crate::agent::thread::spawn;
use crate::netlink::link_of;

/// Version of nearmetal, exchanged in the handshake.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Time between two progress reports of a running task.
const PROGRESS_PERIOD: Duration = Duration::from_millis(250);

/// Samples of one block: 32 KiB in binary form, a third more as text.
const BLOCK_SAMPLES: usize = 8192;

/// Longest time without a request and without a running task, after which a controller on the
/// network is taken for one that has forgotten its server.
pub const IDLE_MAX: Duration = Duration::from_secs(600);

/// Events that wait for the session; a controller that sends faster than it is answered waits.
const EVENTS_MAX: usize = 16;

/// Longest time from the cancellation of a task to its end, after the controller has disconnected.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(3);

/// What the session waits for.
enum SessionEvent {
    Line(Line),
    Connected(u64, Result<Endpoint, Failure>),
    Finished(u64, Result<TaskReport, Failure>),
}

/// State of the session's task.
enum TaskState {
    Idle,
    /// Prepared: can be connected or run.
    Ready(Box<Endpoint>),
    /// In the thread of the task with this number.
    Connecting(u64),
    /// In the thread of the task with this number.
    Running(u64, Arc<Control>),
}

struct Session<W> {
    output: W,
    /// Absent if the controller started this agent itself.
    filter: Option<PeerFilter>,
    /// Address of the other end, if the controller has named it.
    peer: Option<IpAddr>,
    /// Longest time without a request, if the controller is on the network.
    idle_max: Option<Duration>,
    /// Of a stream that outlives its controllers: the silence after which the controller has gone.
    silence_max: Option<Duration>,
    /// When the controller sent something last.
    heard: Moment,
    task: TaskState,
    /// Number of the current task, so that events of an abandoned task can be recognised.
    task_number: u64,
    events: SyncSender<SessionEvent>,
}

/// Serves one controller until it sends `bye`, closes its end of the stream, or sends a line that
/// is too long. A task that still runs then is cancelled.
///
/// # Errors
/// If an answer cannot be written, a line is too long, or a cancelled task does not end.
pub fn serve<R, W>(input: R, output: W) -> Result<(), Failure>
where
    R: Read + Send + 'static,
    W: Write,
{
    serve_stream(input, output, None, Limits::default())
}

/// As [`serve`], on a stream that outlives its controllers, such as a serial line: one after
/// another attaches, and only the end of the stream ends the session. A task is cancelled when its
/// controller has been silent for `silence_max`.
///
/// # Errors
/// As [`serve`].
pub(super) fn serve_lasting<R, W>(input: R, output: W, silence_max: Duration) -> Result<(), Failure>
where
    R: Read + Send + 'static,
    W: Write,
{
    let limits = Limits { silence_max: Some(silence_max), ..Limits::default() };
    serve_stream(input, output, None, limits)
}

/// As [`serve`], for a controller on the network: it may only name the addresses that `filter`
/// allows, and is ended after `idle_max` without a request, unless a task is running.
///
/// # Errors
/// As [`serve`], and if the controller was ended.
pub(super) fn serve_remote<R, W>(
    input: R,
    output: W,
    filter: Option<PeerFilter>,
    idle_max: Option<Duration>,
) -> Result<(), Failure>
where
    R: Read + Send + 'static,
    W: Write,
{
    serve_stream(input, output, filter, Limits { idle_max, ..Limits::default() })
}

/// How long a controller may say nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Limits {
    /// While no task runs, after which the session ends.
    idle_max: Option<Duration>,
    /// At any time, after which its task ends and the session goes on.
    silence_max: Option<Duration>,
}

fn serve_stream<R, W>(
    input: R,
    output: W,
    filter: Option<PeerFilter>,
    Limits { idle_max, silence_max }: Limits,
) -> Result<(), Failure>
where
    R: Read + Send + 'static,
    W: Write,
{
    let (events, queue) = sync_channel(EVENTS_MAX);
    let reader = events.clone();
    spawn("requests", move || {
        let mut lines = Lines::new(input);
        loop {
            let line = lines.next();
            let last = line == Line::End || line == Line::TooLong;
            if reader.send(SessionEvent::Line(line)).is_err() || last {
                return;
            }
        }
    })?;
    let mut session = Session {
        output,
        filter,
        peer: None,
        idle_max,
        silence_max,
        heard: Moment::now(),
        task: TaskState::Idle,
        task_number: 0,
        events,
    };
    session.greet(None)?;
    let result = session.run(&queue);
    session.stop_task(&queue).and(result)
}

fn bad_request(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::BadRequest, message)
}

impl<W: Write> Session<W> {
    fn run(&mut self, queue: &Receiver<SessionEvent>) -> Result<(), Failure> {
        loop {
            match self.wait(queue)? {
                None | Some(SessionEvent::Line(Line::End)) => return Ok(()),
                Some(SessionEvent::Line(Line::TooLong)) => {
                    let failure =
                        bad_request(format!("a line is longer than {LINE_BYTES_MAX} bytes"));
                    self.answer(&Answer::Failed(failure.clone()))?;
                    return Err(failure);
                }
                Some(SessionEvent::Line(Line::Text(text))) => {
                    self.heard = Moment::now();
                    match read_request(&text) {
                        Ok(Request::Bye) if self.silence_max.is_none() => {
                            return self.answer(&Answer::Bye);
                        }
                        Ok(Request::Bye) => self.leave(queue)?,
                        Ok(Request::Attach { token }) => {
                            self.leave(queue)?;
                            self.greet(Some(token))?;
                        }
                        Ok(request) => self.request(request)?,
                        Err(failure) => self.answer(&Answer::Failed(failure))?,
                    }
                }
                Some(SessionEvent::Connected(number, result)) => self.connected(number, result)?,
                Some(SessionEvent::Finished(number, result)) => self.finished(number, result)?,
            }
        }
    }

    fn greet(&mut self, token: Option<Token>) -> Result<(), Failure> {
        self.answer(&Answer::Hello {
            protocol: PROTOCOL_VERSION,
            version: VERSION.to_string(),
            pid: std::process::id(),
            token,
        })
    }

    /// Forgets the controller and all that it has begun.
    fn leave(&mut self, queue: &Receiver<SessionEvent>) -> Result<(), Failure> {
        self.stop_task(queue)?;
        (self.task, self.peer) = (TaskState::Idle, None);
        Ok(())
    }

    /// The next event. Progress of a running task is reported while waiting. None if no event can
    /// follow.
    fn wait(&mut self, queue: &Receiver<SessionEvent>) -> Result<Option<SessionEvent>, Failure> {
        loop {
            let TaskState::Running(_, control) = &self.task else {
                return self.wait_for_request(queue);
            };
            match queue.recv_timeout(PROGRESS_PERIOD) {
                Ok(event) => return Ok(Some(event)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if self.is_left() => control.cancel(),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some((statistic, value)) = control.progress() {
                        self.answer(&Answer::Progress { statistic, value })?;
                    }
                }
            }
        }
    }

    /// Whether the controller has been silent for too long.
    fn is_left(&self) -> bool {
        self.silence_max.is_some_and(|limit| Moment::now().since(self.heard) > limit)
    }

    /// The next event while no task is running.
    fn wait_for_request(
        &mut self,
        queue: &Receiver<SessionEvent>,
    ) -> Result<Option<SessionEvent>, Failure> {
        let Some(idle_max) = self.idle_max else { return Ok(queue.recv().ok()) };
        match queue.recv_timeout(idle_max) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                let message = format!("the controller has sent nothing for {idle_max:?}");
                let failure = Failure::new(FailureKind::Peer, message).hint("connect again");
                // It may have gone.
                let _ = self.answer(&Answer::Failed(failure.clone()));
                Err(failure)
            }
        }
    }

    fn request(&mut self, request: Request) -> Result<(), Failure> {
        let result = match request {
            Request::Describe => {
                return self.answer(&Answer::Facts(Box::new(nm_host::facts())));
            }
            Request::Path { own, peer } => match self.set_path(own, peer) {
                Ok(link) => return self.answer(&Answer::Path { link }),
                Err(failure) => Err(failure),
            },
            // Whoever reads this agent's input has noticed it.
            Request::Alive => return Ok(()),
            Request::Cancel => return self.cancel(),
            Request::Prepare { side, task, stage: Stage::Listen { address } } => {
                match self.listen(side, &task, &address) {
                    Ok(addresses) => return self.answer(&Answer::Prepared { addresses }),
                    Err(failure) => Err(failure),
                }
            }
            Request::Prepare { stage: Stage::Connect { addresses }, .. } => self.connect(addresses),
            Request::Run => self.start(),
            // `run` handles these.
            Request::Bye | Request::Attach { .. } => Ok(()),
        };
        match result {
            Ok(()) => Ok(()),
            Err(failure) => self.answer(&Answer::Failed(failure)),
        }
    }

    fn set_path(&mut self, own: IpAddr, peer: IpAddr) -> Result<Option<String>, Failure> {
        self.peer = Some(peer);
        link_of(own).map_err(|error| {
            let message = format!("cannot read the addresses of this host: {error}");
            Failure::new(FailureKind::System, message)
        })
    }

    fn listen(&mut self, side: Side, task: &Task, address: &str) -> Result<Vec<String>, Failure> {
        self.refuse_while_busy()?;
        if let Some(filter) = &self.filter {
            filter.check_listen(task, address)?;
        }
        // Closes the sockets of a task that was prepared before.
        self.task = TaskState::Idle;
        let mut endpoint = catch_panic(|| Endpoint::listen(side, task, address))?;
        // A controller on the network is the peer itself, whatever it says.
        if let Some(peer) = self.filter.map(|filter| filter.peer()).or(self.peer) {
            endpoint.only_from(peer);
        }
        let addresses = endpoint.addresses().to_vec();
        self.task = TaskState::Ready(Box::new(endpoint));
        Ok(addresses)
    }

    fn connect(&mut self, addresses: Vec<String>) -> Result<(), Failure> {
        if let Some(filter) = &self.filter {
            filter.check_connect(&addresses)?;
        }
        let mut endpoint = self.take_ready("connect")?;
        self.task_number += 1;
        let (number, events) = (self.task_number, self.events.clone());
        self.task = TaskState::Connecting(number);
        spawn("connect", move || {
            let result = catch_panic(|| {
                endpoint.connect(&addresses)?;
                Ok(*endpoint)
            });
            let _ = events.send(SessionEvent::Connected(number, result));
        })
    }

    fn start(&mut self) -> Result<(), Failure> {
        let endpoint = self.take_ready("run")?;
        self.task_number += 1;
        let (number, events) = (self.task_number, self.events.clone());
        let control = Arc::new(Control::default());
        self.task = TaskState::Running(number, control.clone());
        spawn("task", move || {
            let result = catch_panic(|| endpoint.run(&control));
            let _ = events.send(SessionEvent::Finished(number, result));
        })
    }

    fn cancel(&mut self) -> Result<(), Failure> {
        match &self.task {
            TaskState::Running(_, control) => control.cancel(),
            TaskState::Connecting(_) => {
                self.task = TaskState::Idle;
                let failure = Failure::new(FailureKind::Cancelled, "connecting was cancelled");
                return self.answer(&Answer::Failed(failure));
            }
            TaskState::Ready(_) | TaskState::Idle => self.task = TaskState::Idle,
        }
        Ok(())
    }

    fn connected(&mut self, number: u64, result: Result<Endpoint, Failure>) -> Result<(), Failure> {
        if !matches!(self.task, TaskState::Connecting(current) if current == number) {
            return Ok(());
        }
        match result {
            Ok(endpoint) => {
                self.task = TaskState::Ready(Box::new(endpoint));
                self.answer(&Answer::Prepared { addresses: vec![] })
            }
            Err(failure) => {
                self.task = TaskState::Idle;
                self.answer(&Answer::Failed(failure))
            }
        }
    }

    fn finished(
        &mut self,
        number: u64,
        result: Result<TaskReport, Failure>,
    ) -> Result<(), Failure> {
        let control = match &self.task {
            TaskState::Running(current, control) if *current == number => control.clone(),
            _ => return Ok(()),
        };
        self.task = TaskState::Idle;
        match result {
            Ok(report) => {
                for (statistic, samples) in control.take_samples() {
                    for block in samples.chunks(BLOCK_SAMPLES) {
                        let block = samples::encode(block);
                        self.answer(&Answer::Samples { statistic, block })?;
                    }
                }
                self.answer(&Answer::Done(Box::new(report)))
            }
            Err(failure) => self.answer(&Answer::Failed(failure)),
        }
    }

    fn refuse_while_busy(&self) -> Result<(), Failure> {
        match self.task {
            TaskState::Connecting(_) | TaskState::Running(..) => {
                Err(bad_request("a task is running; cancel it or wait for its end"))
            }
            TaskState::Ready(_) | TaskState::Idle => Ok(()),
        }
    }

    fn take_ready(&mut self, request: &str) -> Result<Box<Endpoint>, Failure> {
        self.refuse_while_busy()?;
        match std::mem::replace(&mut self.task, TaskState::Idle) {
            TaskState::Ready(endpoint) => Ok(endpoint),
            _ => Err(bad_request(format!("`{request}` needs a prepared task"))),
        }
    }

    /// Cancels a running task and waits for its end.
    fn stop_task(&mut self, queue: &Receiver<SessionEvent>) -> Result<(), Failure> {
        let TaskState::Running(running, control) = &self.task else { return Ok(()) };
        control.cancel();
        loop {
            match queue.recv_timeout(CANCEL_TIMEOUT) {
                Ok(SessionEvent::Finished(number, _)) if number == *running => return Ok(()),
                Ok(_) => {}
                Err(_) => {
                    let message = "the task was cancelled but does not end";
                    return Err(Failure::new(FailureKind::System, message));
                }
            }
        }
    }

    /// Writes one line. All answers are far below the length limit: histograms have a few KiB, and
    /// samples are sent in blocks.
    fn answer(&mut self, answer: &Answer) -> Result<(), Failure> {
        let disconnected = |error: std::io::Error| {
            Failure::new(FailureKind::Peer, format!("the controller has disconnected: {error}"))
        };
        let mut line = serde_json::to_vec(answer)
            .map_err(|error| Failure::new(FailureKind::System, error.to_string()))?;
        line.push(b'\n');
        self.output.write_all(&line).and_then(|()| self.output.flush()).map_err(disconnected)
    }
}

fn read_request(text: &str) -> Result<Request, Failure> {
    serde_json::from_str(text).map_err(|error| {
        let start: String = text.chars().take(60).collect();
        bad_request(format!("`{start}` is not a request: {error}"))
    })
}

// A profile that aborts would end an agent, and with process 1 a guest, without a word.
const _: () = assert!(cfg!(panic = "unwind"), "build with panic = \"unwind\"");

/// Turns a panic of a probe into a failure, so that the agent can still answer.
fn catch_panic<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no reason given");
        Err(Failure::new(FailureKind::System, format!("the probe panicked: {text}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::agent::{Token, Work};
    use nm_model::probe::StreamSpec;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_probe_that_panics_is_a_failure_with_its_reason() {
        let panics = || -> Result<(), Failure> { panic!("no {}", "more") };
        let failure = catch_panic(panics).unwrap_err();
        assert_eq!(failure.message, "the probe panicked: no more");
    }

    /// All answers to `input`, read back.
    fn answers(input: &[u8]) -> (Vec<Answer>, Result<(), Failure>) {
        let mut output = vec![];
        let result = serve(std::io::Cursor::new(input.to_vec()), &mut output);
        let text = String::from_utf8(output).unwrap();
        (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), result)
    }

    fn is_bad(answer: &Answer) -> bool {
        matches!(answer, Answer::Failed(failure) if failure.kind == FailureKind::BadRequest)
    }

    #[test]
    fn session_starts_with_hello_and_ends_with_bye() {
        let (all, result) = answers(b"{\"do\":\"bye\"}\n{\"do\":\"describe\"}\n");
        assert!(matches!(
            &all[..],
            [Answer::Hello { protocol: PROTOCOL_VERSION, .. }, Answer::Bye]
        ));
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn end_of_input_ends_session_without_error() {
        let (all, result) = answers(b"");
        assert_eq!(all.len(), 1);
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn describe_returns_facts() {
        let (all, _) = answers(b"{\"do\":\"describe\"}\n");
        let Answer::Facts(facts) = &all[1] else { panic!("{all:?}") };
        assert!(facts.cpu.online >= 1);
    }

    #[test]
    fn invalid_request_is_refused_and_next_one_is_served() {
        let (all, result) =
            answers(b"nonsense\n{\"do\":\"dance\"}\n{\"do\":\"run\"}\n\xff\n{\"do\":\"bye\"}\n");
        assert_eq!(all.len(), 6, "{all:?}");
        assert!(all[1..5].iter().all(is_bad), "{all:?}");
        assert_eq!(all[5], Answer::Bye);
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn cancel_without_task_has_no_answer() {
        let (all, _) = answers(b"{\"do\":\"cancel\"}\n{\"do\":\"bye\"}\n");
        assert!(matches!(&all[..], [Answer::Hello { .. }, Answer::Bye]));
    }

    #[test]
    fn overlong_line_is_refused_and_ends_session() {
        let mut input = vec![b'{'; LINE_BYTES_MAX + 10];
        input.extend(b"\n{\"do\":\"bye\"}\n");
        let (all, result) = answers(&input);
        assert!(is_bad(&all[1]) && all.len() == 2, "{all:?}");
        assert!(result.is_err());
    }

    #[test]
    fn a_controller_that_is_there_is_not_answered() {
        let (all, result) = answers(b"{\"do\":\"alive\"}\n{\"do\":\"alive\"}\n{\"do\":\"bye\"}\n");
        assert!(matches!(&all[..], [Answer::Hello { .. }, Answer::Bye]), "{all:?}");
        assert!(result.is_ok());
    }

    #[test]
    fn silent_controller_is_ended_with_a_sentence() {
        let (input, _silent) = std::io::pipe().unwrap();
        let mut output = vec![];
        let idle_max = Some(Duration::from_millis(20));
        let failure = serve_remote(input, &mut output, None, idle_max).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Peer);
        assert_eq!(failure.message, "the controller has sent nothing for 20ms");
        let last = String::from_utf8(output).unwrap().lines().last().unwrap().to_string();
        assert_eq!(serde_json::from_str::<Answer>(&last).unwrap(), Answer::Failed(failure));
    }

    #[test]
    fn sizes_beyond_the_limits_are_refused_before_anything_is_allocated() {
        let spec = StreamSpec { write_bytes: u32::MAX, ..StreamSpec::default() };
        let work = Work::Stream(spec.of_pattern("128-uni-128".parse().unwrap()));
        let stack = nm_model::Stack::new(nm_model::Protocol::Tcp, nm_model::Mode::Blocking);
        let token = Token::default();
        let task = Task { stack, cpus: vec![], work, seed: 1, raw_samples: false, token };
        let stage = Stage::Listen { address: "127.0.0.1".into() };
        let prepare = Request::Prepare { side: Side::Client, task: Box::new(task), stage };
        let (all, _) =
            answers(format!("{}\n", serde_json::to_string(&prepare).unwrap()).as_bytes());
        let Answer::Failed(failure) = &all[1] else { panic!("{all:?}") };
        assert_eq!(failure.kind, FailureKind::BadRequest);
        assert_eq!(failure.message, "write_bytes is 4294967295, must be 1 to 16777216");
    }

    /// Input without end, and how many bytes of it were read.
    struct Endless(Arc<AtomicUsize>);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            buffer.iter_mut().zip(b"{}\n".iter().cycle()).for_each(|(to, from)| *to = *from);
            // Lines stay whole: a buffer may end within one.
            let length = buffer.len() / 3 * 3;
            self.0.fetch_add(length, Ordering::Relaxed);
            Ok(length)
        }
    }

    /// Takes the greeting, and then nothing until it is made to fail.
    struct Stuck {
        is_greeted: bool,
        release: Receiver<()>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if !std::mem::replace(&mut self.is_greeted, true) {
                return Ok(bytes.len());
            }
            let _ = self.release.recv();
            Err(std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn controller_that_reads_no_answers_cannot_fill_the_memory() {
        let read = Arc::new(AtomicUsize::new(0));
        let (input, (release, wait)) = (Endless(read.clone()), sync_channel(1));
        let serving = std::thread::spawn(move || {
            serve(input, Stuck { is_greeted: false, release: wait }).unwrap_err()
        });
        // Time in which an unbounded queue takes many megabytes.
        std::thread::sleep(Duration::from_millis(200));
        let bytes = read.load(Ordering::Relaxed);
        release.send(()).unwrap();
        assert_eq!(serving.join().unwrap().kind, FailureKind::Peer);
        // The queue, and what is read ahead.
        assert!(bytes <= 64 * 1024, "{bytes}");
    }

    #[test]
    fn closed_output_ends_session() {
        struct ClosedPipe;
        impl Write for ClosedPipe {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let failure = serve(std::io::empty(), ClosedPipe).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Peer);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arbitrary_lines_are_answered_one_by_one(
            lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..8)
        ) {
            let input: Vec<u8> = lines.join(&b'\n');
            let (all, _) = answers(&input);
            let has_hello = matches!(all[0], Answer::Hello { .. });
            prop_assert!(has_hello);
            prop_assert!(all[1..].iter().all(is_bad));
        }

        #[test]
        fn arbitrary_text_in_request_is_answered(text in "[ -~]{0,60}", number in any::<i64>()) {
            let word = serde_json::to_string(&text).unwrap();
            for input in [
                format!("{{\"do\":{word}}}\n"),
                format!("{{\"do\":\"prepare\",\"side\":{word},\"task\":{number}}}\n"),
            ] {
                let (all, result) = answers(input.as_bytes());
                prop_assert!(all.len() <= 2);
                prop_assert_eq!(result, Ok(()));
            }
        }
    }
}
