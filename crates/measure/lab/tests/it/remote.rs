//! The agent as a server on a TCP port.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nm_lab::agent::{Handle, IDLE_MAX, Notice, listen};
use nm_model::agent::PROTOCOL_VERSION;
use nm_model::{Failure, FailureKind};

use crate::harness::Test;

pub const TESTS: &[Test] = &[
    ("remote::server_serves_one_controller_after_another", serves),
    ("remote::second_controller_is_refused", busy),
    ("remote::once_ends_with_first_controller", once),
    ("remote::idle_controller_is_ended", idle),
    ("remote::port_in_use_is_reported", taken),
    ("remote::missing_server_is_reported", nobody),
    ("remote::other_version_is_reported", other_version),
    ("remote::server_that_never_stops_sending_is_left", flood),
    ("remote::invalid_input_is_answered_and_ignored", garbage),
];

const TIMEOUT: Duration = Duration::from_secs(20);

struct Server {
    address: SocketAddr,
    notices: Receiver<Notice>,
    thread: thread::JoinHandle<Result<(), Failure>>,
}

impl Server {
    /// A server on a free port of loopback.
    fn start(once: bool) -> Server {
        Server::start_with(once, IDLE_MAX)
    }

    fn start_with(once: bool, idle_max: Duration) -> Server {
        let (sender, notices) = channel();
        let sender = std::sync::Mutex::new(sender);
        let thread = thread::spawn(move || {
            listen("127.0.0.1:0".parse().unwrap(), once, idle_max, move |notice| {
                // The test may have ended.
                let _ = sender.lock().unwrap().send(notice);
            })
        });
        match notices.recv_timeout(TIMEOUT).unwrap() {
            Notice::Listening(address) => Server { address, notices, thread },
            other => panic!("{other:?}"),
        }
    }

    fn connect(&self) -> Result<Handle, Failure> {
        Handle::connect("server", self.address)
    }

    /// Waits until the server has noticed the end of a controller.
    fn ended(&self) -> Result<(), Failure> {
        loop {
            if let Notice::Ended(_, result) = self.notices.recv_timeout(TIMEOUT).unwrap() {
                return result;
            }
        }
    }
}

fn serves() {
    let server = Server::start(false);
    for _ in 0..2 {
        let mut handle = server.connect().unwrap();
        assert!(handle.describe().unwrap().cpu.online >= 1);
        assert_eq!(handle.connection().unwrap().1, server.address);
        handle.close();
        assert_eq!(server.ended(), Ok(()));
    }
    // A connection that is closed without `bye` frees the server too.
    drop(TcpStream::connect(server.address).unwrap());
    let _ = server.ended();
    assert!(server.connect().is_ok());
}

fn busy() {
    let server = Server::start(false);
    let first = server.connect().unwrap();
    let failure = server.connect().err().unwrap();
    assert_eq!(failure.kind, FailureKind::NotAvailable);
    assert_eq!(failure.message, "the server is busy with another controller");
    drop(first);
    assert_eq!(server.ended(), Ok(()));
    assert!(server.connect().is_ok());
}

fn idle() {
    let server = Server::start_with(false, Duration::from_millis(100));
    let forgotten = TcpStream::connect(server.address).unwrap();
    let failure = server.ended().unwrap_err();
    assert_eq!(failure.message, "the controller has sent nothing for 100ms");
    // The server is free again, and the controller has received the reason.
    let mut lines = BufReader::new(forgotten).lines();
    assert!(lines.next().unwrap().unwrap().contains("hello"));
    assert!(lines.next().unwrap().unwrap().contains("has sent nothing"));
    assert!(lines.next().is_none_or(|line| line.is_err()));
    assert!(TcpStream::connect(server.address).is_ok());
}

fn once() {
    let server = Server::start(true);
    drop(server.connect().unwrap());
    assert_eq!(server.thread.join().unwrap(), Ok(()));
    assert!(TcpStream::connect(server.address).is_err());
}

fn taken() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let failure = listen(address, true, IDLE_MAX, |_| {}).unwrap_err();
    assert_eq!(failure.kind, FailureKind::AddressInUse);
    assert_eq!(failure.message, format!("{address} is already in use"));
}

fn nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let failure = Handle::connect("server", address).err().unwrap();
    assert_eq!(failure.kind, FailureKind::Peer);
    assert!(failure.message.starts_with(&format!("cannot reach server at {address}: ")));
    assert!(failure.hint.is_some());
}

fn other_version() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        writeln!(stream, r#"{{"answer":"hello","protocol":99,"version":"2.0.0","pid":1}}"#)
            .unwrap();
        // Keeps the connection open until the other end closes it.
        let _ = stream.read(&mut [0; 64]);
    });
    let failure = Handle::connect("server", address).err().unwrap();
    thread.join().unwrap();
    assert!(failure.message.contains("nearmetal 2.0.0 with protocol 99"), "{failure}");
}

/// A server that sends without end: closing must come to an end, and take no more of it.
fn flood() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let flooding = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let hello = format!(
            "{{\"answer\":\"hello\",\"protocol\":{PROTOCOL_VERSION},\"version\":\"{version}\",\
             \"pid\":1}}\n"
        );
        stream.write_all(hello.as_bytes()).unwrap();
        while stream.write_all(b"{\"answer\":\"bye\"}\n").is_ok() {}
    });
    let mut handle = Handle::connect("server", address).unwrap();
    handle.close();
    drop(handle);
    flooding.join().unwrap();
}

fn garbage() {
    let server = Server::start(false);
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\0\xff\xfe\r\n{}\n[]\n\"do\"\n").unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("hello"));
    for _ in 0..5 {
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains("bad-request"), "{line}");
    }
    drop((stream, lines));
    assert_eq!(server.ended(), Ok(()));
    assert!(server.connect().is_ok());
}
