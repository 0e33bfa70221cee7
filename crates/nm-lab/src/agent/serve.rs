//! The agent's side: requests come in as lines, one task at a time is worked on in a thread of its
//! own, answers go out.

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use nm_model::agent::{LINE_BYTES_MAX, PROTOCOL_VERSION, Stage, Task, TaskReport};
use nm_model::{Answer, Failure, FailureKind, Request, Side};
use nm_probe::{Control, Endpoint};

use super::guard::Guard;
use super::lines::{Line, Lines};
use super::{VERSION, spawn};

/// Time between two estimates while a task runs: four a second.
const PROGRESS_PERIOD: Duration = Duration::from_millis(250);

/// Samples of one block: 32 KiB, and a third more as text.
const BLOCK_SAMPLES: usize = 8192;

/// How long a task may take to end after it was told to, when the controller has gone.
const FAREWELL: Duration = Duration::from_secs(3);

/// What the session waits for.
enum Happening {
    Line(Line),
    Connected(u64, Result<Endpoint, Failure>),
    Finished(u64, Result<TaskReport, Failure>),
}

/// What the session has in hand.
enum Work {
    Nothing,
    /// Prepared, to be connected or run.
    Ready(Box<Endpoint>),
    /// In another thread, under its number.
    Connecting(u64),
    Running(u64, Arc<Control>),
}

struct Session<W> {
    output: W,
    /// Absent for a controller that started this agent itself.
    guard: Option<Guard>,
    work: Work,
    /// Numbers the work, so that what comes of work that was given up can be told apart.
    number: u64,
    happenings: Sender<Happening>,
}

/// Serves one controller until it says `bye`, its end of the stream closes, or it sends a line
/// longer than any. Whatever runs then is cancelled.
///
/// # Errors
/// If an answer cannot be written, if a line is too long, or if a task does not end when told.
pub fn serve<R, W>(input: R, output: W) -> Result<(), Failure>
where
    R: Read + Send + 'static,
    W: Write,
{
    serve_guarded(input, output, None)
}

/// As [`serve`], for a controller that may only have done what `guard` allows.
///
/// # Errors
/// As [`serve`].
pub(super) fn serve_guarded<R, W>(input: R, output: W, guard: Option<Guard>) -> Result<(), Failure>
where
    R: Read + Send + 'static,
    W: Write,
{
    let (happenings, queue) = channel();
    let reader = happenings.clone();
    spawn("requests", move || {
        let mut lines = Lines::new(input);
        loop {
            let line = lines.next();
            let last = line == Line::End || line == Line::TooLong;
            if reader.send(Happening::Line(line)).is_err() || last {
                return;
            }
        }
    })?;
    let mut session = Session { output, guard, work: Work::Nothing, number: 0, happenings };
    session.answer(&Answer::Hello {
        protocol: PROTOCOL_VERSION,
        version: VERSION.to_string(),
        pid: std::process::id(),
    })?;
    let result = session.run(&queue);
    session.farewell(&queue).and(result)
}

fn bad_request(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::BadRequest, message)
}

impl<W: Write> Session<W> {
    fn run(&mut self, queue: &Receiver<Happening>) -> Result<(), Failure> {
        loop {
            match self.wait(queue)? {
                None | Some(Happening::Line(Line::End)) => return Ok(()),
                Some(Happening::Line(Line::TooLong)) => {
                    let failure =
                        bad_request(format!("a line is longer than {LINE_BYTES_MAX} bytes"));
                    self.answer(&Answer::Failed(failure.clone()))?;
                    return Err(failure);
                }
                Some(Happening::Line(Line::Text(text))) => match read_request(&text) {
                    Ok(Request::Bye) => return self.answer(&Answer::Bye),
                    Ok(request) => self.request(request)?,
                    Err(failure) => self.answer(&Answer::Failed(failure))?,
                },
                Some(Happening::Connected(number, result)) => self.connected(number, result)?,
                Some(Happening::Finished(number, result)) => self.finished(number, result)?,
            }
        }
    }

    /// The next happening, with estimates told meanwhile. None if nothing can happen any more.
    fn wait(&mut self, queue: &Receiver<Happening>) -> Result<Option<Happening>, Failure> {
        loop {
            let Work::Running(_, control) = &self.work else { return Ok(queue.recv().ok()) };
            match queue.recv_timeout(PROGRESS_PERIOD) {
                Ok(happening) => return Ok(Some(happening)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some((statistic, value)) = control.progress() {
                        self.answer(&Answer::Progress { statistic, value })?;
                    }
                }
            }
        }
    }

    fn request(&mut self, request: Request) -> Result<(), Failure> {
        let result = match request {
            Request::Describe => {
                return self.answer(&Answer::Facts(Box::new(nm_host::facts())));
            }
            Request::Cancel => return self.cancel(),
            Request::Prepare { side, task, stage: Stage::Listen { address } } => {
                match self.listen(side, &task, &address) {
                    Ok(addresses) => return self.answer(&Answer::Prepared { addresses }),
                    Err(failure) => Err(failure),
                }
            }
            Request::Prepare { stage: Stage::Connect { addresses }, .. } => self.connect(addresses),
            Request::Run => self.start(),
            // `bye` ends the loop before.
            Request::Bye => Ok(()),
        };
        match result {
            Ok(()) => Ok(()),
            Err(failure) => self.answer(&Answer::Failed(failure)),
        }
    }

    fn listen(&mut self, side: Side, task: &Task, address: &str) -> Result<Vec<String>, Failure> {
        self.refuse_while_busy()?;
        if let Some(guard) = &self.guard {
            guard.listen(task, address)?;
        }
        // What was prepared before gives its sockets back first.
        self.work = Work::Nothing;
        let endpoint = guarded(|| Endpoint::listen(side, task, address))?;
        let addresses = endpoint.addresses().to_vec();
        self.work = Work::Ready(Box::new(endpoint));
        Ok(addresses)
    }

    fn connect(&mut self, addresses: Vec<String>) -> Result<(), Failure> {
        if let Some(guard) = &self.guard {
            guard.connect(&addresses)?;
        }
        let mut endpoint = self.take_ready("connect")?;
        self.number += 1;
        let (number, happenings) = (self.number, self.happenings.clone());
        self.work = Work::Connecting(number);
        spawn("connect", move || {
            let result = guarded(|| {
                endpoint.connect(&addresses)?;
                Ok(*endpoint)
            });
            let _ = happenings.send(Happening::Connected(number, result));
        })
    }

    fn start(&mut self) -> Result<(), Failure> {
        let endpoint = self.take_ready("run")?;
        self.number += 1;
        let (number, happenings) = (self.number, self.happenings.clone());
        let control = Arc::new(Control::default());
        self.work = Work::Running(number, control.clone());
        spawn("task", move || {
            let result = guarded(|| endpoint.run(&control));
            let _ = happenings.send(Happening::Finished(number, result));
        })
    }

    fn cancel(&mut self) -> Result<(), Failure> {
        match &self.work {
            Work::Running(_, control) => control.cancel(),
            Work::Connecting(_) => {
                self.work = Work::Nothing;
                let failure = Failure::new(FailureKind::Cancelled, "connecting was cancelled");
                return self.answer(&Answer::Failed(failure));
            }
            Work::Ready(_) | Work::Nothing => self.work = Work::Nothing,
        }
        Ok(())
    }

    fn connected(&mut self, number: u64, result: Result<Endpoint, Failure>) -> Result<(), Failure> {
        if !matches!(self.work, Work::Connecting(current) if current == number) {
            return Ok(());
        }
        match result {
            Ok(endpoint) => {
                self.work = Work::Ready(Box::new(endpoint));
                self.answer(&Answer::Prepared { addresses: vec![] })
            }
            Err(failure) => {
                self.work = Work::Nothing;
                self.answer(&Answer::Failed(failure))
            }
        }
    }

    fn finished(
        &mut self,
        number: u64,
        result: Result<TaskReport, Failure>,
    ) -> Result<(), Failure> {
        let control = match &self.work {
            Work::Running(current, control) if *current == number => control.clone(),
            _ => return Ok(()),
        };
        self.work = Work::Nothing;
        match result {
            Ok(report) => {
                for (statistic, samples) in control.take_samples() {
                    for block in samples.chunks(BLOCK_SAMPLES) {
                        let block = super::encode(block);
                        self.answer(&Answer::Samples { statistic, block })?;
                    }
                }
                self.answer(&Answer::Done(Box::new(report)))
            }
            Err(failure) => self.answer(&Answer::Failed(failure)),
        }
    }

    fn refuse_while_busy(&self) -> Result<(), Failure> {
        match self.work {
            Work::Connecting(_) | Work::Running(..) => {
                Err(bad_request("a task is under way; cancel it or wait for its end"))
            }
            Work::Ready(_) | Work::Nothing => Ok(()),
        }
    }

    fn take_ready(&mut self, request: &str) -> Result<Box<Endpoint>, Failure> {
        self.refuse_while_busy()?;
        match std::mem::replace(&mut self.work, Work::Nothing) {
            Work::Ready(endpoint) => Ok(endpoint),
            _ => Err(bad_request(format!("nothing is prepared to {request}"))),
        }
    }

    /// Ends what still runs.
    fn farewell(&mut self, queue: &Receiver<Happening>) -> Result<(), Failure> {
        let Work::Running(running, control) = &self.work else { return Ok(()) };
        control.cancel();
        loop {
            match queue.recv_timeout(FAREWELL) {
                Ok(Happening::Finished(number, _)) if number == *running => return Ok(()),
                Ok(_) => {}
                Err(_) => {
                    let message = "the task does not end although it was cancelled";
                    return Err(Failure::new(FailureKind::System, message));
                }
            }
        }
    }

    /// Writes one line. No answer comes near the largest length: histograms have a few KiB, and
    /// samples go in blocks.
    fn answer(&mut self, answer: &Answer) -> Result<(), Failure> {
        let gone = |error: std::io::Error| {
            Failure::new(FailureKind::Peer, format!("the controller has gone: {error}"))
        };
        let mut line = serde_json::to_vec(answer)
            .map_err(|error| Failure::new(FailureKind::System, error.to_string()))?;
        line.push(b'\n');
        self.output.write_all(&line).and_then(|()| self.output.flush()).map_err(gone)
    }
}

fn read_request(text: &str) -> Result<Request, Failure> {
    serde_json::from_str(text).map_err(|error| {
        let start: String = text.chars().take(60).collect();
        bad_request(format!("`{start}` is no request: {error}"))
    })
}

/// Turns a panic of a probe into a failure, so that the agent stays to answer.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
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
    use proptest::prelude::*;

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
    fn an_agent_greets_first_and_says_bye_last() {
        let (all, result) = answers(b"{\"do\":\"bye\"}\n{\"do\":\"describe\"}\n");
        assert!(matches!(
            &all[..],
            [Answer::Hello { protocol: PROTOCOL_VERSION, .. }, Answer::Bye]
        ));
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn the_end_of_the_input_is_a_clean_end() {
        let (all, result) = answers(b"");
        assert_eq!(all.len(), 1);
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn an_agent_describes_its_machine() {
        let (all, _) = answers(b"{\"do\":\"describe\"}\n");
        let Answer::Facts(facts) = &all[1] else { panic!("{all:?}") };
        assert!(facts.cpu.online >= 1);
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_the_next_request_is_served() {
        let (all, result) =
            answers(b"nonsense\n{\"do\":\"dance\"}\n{\"do\":\"run\"}\n\xff\n{\"do\":\"bye\"}\n");
        assert_eq!(all.len(), 6, "{all:?}");
        assert!(all[1..5].iter().all(is_bad), "{all:?}");
        assert_eq!(all[5], Answer::Bye);
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn cancel_of_nothing_has_no_answer() {
        let (all, _) = answers(b"{\"do\":\"cancel\"}\n{\"do\":\"bye\"}\n");
        assert!(matches!(&all[..], [Answer::Hello { .. }, Answer::Bye]));
    }

    #[test]
    fn a_line_without_end_is_refused_and_ends_the_session() {
        let mut input = vec![b'{'; LINE_BYTES_MAX + 10];
        input.extend(b"\n{\"do\":\"bye\"}\n");
        let (all, result) = answers(&input);
        assert!(is_bad(&all[1]) && all.len() == 2, "{all:?}");
        assert!(result.is_err());
    }

    #[test]
    fn a_controller_that_does_not_listen_ends_the_session() {
        struct Deaf;
        impl Write for Deaf {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let failure = serve(std::io::empty(), Deaf).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Peer);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_input_is_answered_line_by_line(
            lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..8)
        ) {
            let input: Vec<u8> = lines.join(&b'\n');
            let (all, _) = answers(&input);
            let greeted = matches!(all[0], Answer::Hello { .. });
            prop_assert!(greeted);
            prop_assert!(all[1..].iter().all(is_bad));
        }

        #[test]
        fn any_text_in_a_request_is_answered(text in "[ -~]{0,60}", number in any::<i64>()) {
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
