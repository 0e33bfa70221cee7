//! Time limits: a test that waits for a process in vain ends it, and says which test it is.

use std::io::Read;
use std::process::{Child, Command, Output};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, sleep};
use std::time::Duration;

/// The limit of a process that a test has started. The longest tests take a quarter of it.
pub const PROCESS_LIMIT: Duration = Duration::from_secs(480);

/// Time between two looks at a process.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs a command to its end, with its output.
///
/// # Panics
/// If it cannot be started, or takes longer than `limit`: it is killed, and the message names the
/// test.
pub fn output(command: &mut Command, limit: Duration) -> Output {
    use std::process::Stdio;
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(command.spawn().expect("the program starts"), limit)
}

/// Waits for the end of a process, and reads what it wrote to its pipes.
///
/// # Panics
/// If it takes longer than `limit`: it is killed, and the message names the test.
pub fn wait(mut child: Child, limit: Duration) -> Output {
    let stdout = child.stdout.take().map(reader);
    let stderr = child.stderr.take().map(reader);
    let mut looks_left = limit.as_millis() / PAUSE.as_millis();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            break status;
        }
        if looks_left == 0 {
            exceeded(child, limit);
        }
        looks_left -= 1;
        sleep(PAUSE);
    };
    // A process that it left behind may hold the pipes.
    let rest = PAUSE * u32::try_from(looks_left).unwrap_or(u32::MAX);
    let read = |pipe: Option<Receiver<Vec<u8>>>| match pipe.map(|pipe| pipe.recv_timeout(rest)) {
        None => vec![],
        Some(Ok(bytes)) => bytes,
        Some(Err(_)) => panic!("{}: the pipes of a process that has ended stay open", test_name()),
    };
    Output { status, stdout: read(stdout), stderr: read(stderr) }
}

fn exceeded(mut child: Child, limit: Duration) -> ! {
    let pid = child.id();
    let _ = child.kill();
    let _ = child.wait();
    panic!("{}: process {pid} did not end within {} s", test_name(), limit.as_secs_f64())
}

fn reader(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = vec![];
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

/// The test whose thread this is.
fn test_name() -> String {
    thread::current().name().unwrap_or("a thread of a test").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_gives_its_output() {
        let output =
            output(Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"]), PROCESS_LIMIT);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(3), &b"a\n"[..]));
        assert_eq!(output.stderr, b"b\n");
    }

    #[test]
    fn a_process_that_does_not_end_is_killed_and_its_test_named() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        let name = test_name();
        let waited = thread::Builder::new()
            .name(name.clone())
            .spawn(move || wait(child, Duration::from_millis(50)))
            .unwrap()
            .join();
        let message = *waited.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, format!("{name}: process {pid} did not end within 0.05 s"));
        assert!(name.ends_with("its_test_named"), "{name}");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it is gone");
    }
}
