//! Controllers on loopback: who enters, who does not, and what a session carries.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nm_controller::agent::{Agent, AgentError, Notice};
use nm_controller::gate::STRANGERS_PER_ADDRESS_MAX;
use nm_controller::hello::{self, Card, EntryToken, LINE_BYTES_MAX, Refusal, Word};
use nm_controller::link::{Link, LinkError};
use nm_controller::local;
use nm_controller::serve::{Controller, RUNS_MAX, ServeError};
use nm_controller::tls::{self, Pin, Trust};
use nm_sys::clock::Deadline;

struct Running {
    folder: tempfile::TempDir,
    address: SocketAddr,
    pin: Option<Pin>,
}

impl Running {
    fn new(key: &str, certificate: Option<&str>) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let (config, pin) = tls::server(key, certificate).unwrap();
        let socket = folder.path().join("socket");
        let any = "127.0.0.1:0".parse().unwrap();
        let controller = Controller::bind(any, &socket, config, token(), |_| {}).unwrap();
        let address = controller.address().unwrap();
        thread::spawn(move || controller.run());
        Running { folder, address, pin }
    }

    fn pinned() -> Running {
        Running::new(&tls::new_key([7; 32]), None)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// A connection of an agent that has said nothing yet.
    fn link(&self, pin: Pin) -> Link {
        let config = Arc::new(tls::client(&Trust::Pin(pin)).unwrap());
        let name = "localhost".try_into().unwrap();
        Link::client(TcpStream::connect(self.address).unwrap(), &config, name).unwrap()
    }

    /// What the controller answers to a first line.
    fn answer(&self, line: &str) -> (Link, Result<Word, LinkError>) {
        let mut link = self.link(self.pin.unwrap());
        link.send(line, soon()).unwrap();
        let answer = link.line(Some(soon())).map(|line| serde_json::from_str(&line).unwrap());
        (link, answer)
    }

    fn agent(&self, trust: Trust) -> Agent {
        Agent {
            host: "127.0.0.1".into(),
            port: self.address.port(),
            token: token(),
            trust,
            name: "a".into(),
            labels: [].into(),
            address: None,
            instance: 5,
        }
    }

    fn names(&self) -> Vec<String> {
        local::list(&self.socket()).unwrap().into_iter().map(|known| known.card.name).collect()
    }
}

fn token() -> EntryToken {
    EntryToken::parse("0123456789abcdef").unwrap()
}

fn card(name: &str) -> Card {
    let address = [127, 0, 0, 1].into();
    Card { name: name.into(), labels: [].into(), address, instance: 5 }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = soon();
    while !is_so() {
        assert!(!deadline.passed(), "waited in vain for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn another_token_or_version_is_refused_with_its_reason() {
    let running = Running::pinned();
    let line = hello::first_line(&token(), &card("a"));
    let other = line.replace("0123456789abcdef", "0123456789abcdeF");
    assert_eq!(running.answer(&other).1.unwrap(), Word::Refused(Refusal::Token));
    let other = line.replace(nm_controller::VERSION, "0.0.9");
    let Word::Refused(refusal) = running.answer(&other).1.unwrap() else { panic!("welcome") };
    assert!(refusal.to_string().contains("this agent is nearmetal 0.0.9"), "{refusal}");
    assert_eq!(running.names(), Vec::<String>::new());
    let (_link, welcome) = running.answer(&line);
    assert_eq!(welcome.unwrap(), Word::Welcome);
    eventually("the agent", || running.names() == ["a"]);
    let taken = line.replace("\"instance\":5", "\"instance\":6");
    let refused = running.answer(&taken).1.unwrap();
    assert_eq!(refused, Word::Refused(Refusal::Name("a".into())));
}

#[test]
fn a_line_that_does_not_end_ends_the_connection() {
    let running = Running::pinned();
    let (_link, answer) = running.answer(&"x".repeat(2 * LINE_BYTES_MAX));
    assert!(matches!(answer, Err(LinkError::Closed | LinkError::System(_))), "{answer:?}");
    assert_eq!(running.names(), Vec::<String>::new());
}

#[test]
fn strangers_beyond_the_limit_are_closed_without_a_word_and_others_enter_after_them() {
    let running = Running::pinned();
    let connect = || TcpStream::connect(running.address).unwrap();
    let strangers: Vec<TcpStream> = (0..STRANGERS_PER_ADDRESS_MAX).map(|_| connect()).collect();
    let mut one_more = connect();
    one_more.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut word = vec![];
    assert!(matches!(one_more.read_to_end(&mut word), Ok(0) | Err(_)), "{word:?}");
    for mut stranger in strangers {
        // No TLS: an alert is all that comes.
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut word = vec![];
        let _ = stranger.read_to_end(&mut word);
        assert!(word.len() <= 7, "{word:?}");
    }
    let line = hello::first_line(&token(), &card("a"));
    eventually("room at the door", || {
        let mut link = running.link(running.pin.unwrap());
        link.send(&line, soon()).is_ok() && link.line(Some(soon())).is_ok()
    });
}

#[test]
fn runs_beyond_the_limit_are_closed_and_others_are_served_after_them() {
    let running = Running::pinned();
    let connect = || UnixStream::connect(running.socket()).unwrap();
    let runs: Vec<UnixStream> = (0..RUNS_MAX).map(|_| connect()).collect();
    let mut one_more = connect();
    one_more.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(one_more.read(&mut [0]).unwrap(), 0);
    drop(runs);
    eventually("room for runs", || local::list(&running.socket()).is_ok());
}

#[test]
fn a_session_carries_all_bytes_both_ways_and_each_end_alone() {
    let running = Running::pinned();
    let line = hello::first_line(&token(), &card("a"));
    let (mut link, _) = running.answer(&line);
    let agent = thread::spawn(move || {
        let open: Word = serde_json::from_str(&link.line(Some(soon())).unwrap()).unwrap();
        assert_eq!(open, Word::Open);
        let (own, work) = UnixStream::pair().unwrap();
        let echo = thread::spawn(move || {
            let mut all = vec![];
            (&work).read_to_end(&mut all).unwrap();
            (&work).write_all(&all).unwrap();
        });
        let ended = link.relay(own);
        echo.join().unwrap();
        ended
    });
    let session = local::open(&running.socket(), "a", &|| false).unwrap();
    assert_eq!(session.agent.card, card("a"));
    assert!(!session.agent.is_translated());
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let mut stream = session.stream;
    stream.write_all(&sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut received = vec![];
    stream.read_to_end(&mut received).unwrap();
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    drop(stream);
    agent.join().unwrap().unwrap();
    eventually("the end of the session", || running.names().is_empty());
}

#[test]
fn a_session_ends_when_its_run_ends_and_an_absent_agent_has_a_sentence() {
    let running = Running::pinned();
    let line = hello::first_line(&token(), &card("a"));
    let (mut link, _) = running.answer(&line);
    let session = local::open(&running.socket(), "a", &|| false).unwrap();
    link.line(Some(soon())).unwrap();
    let (own, mut work) = UnixStream::pair().unwrap();
    let relay = thread::spawn(move || link.relay(own));
    drop(session);
    let mut end = vec![];
    work.read_to_end(&mut end).unwrap();
    drop(work);
    let _ = relay.join().unwrap();
    let absent = local::open(&running.socket(), "b", &|| true).err().unwrap().to_string();
    assert_eq!(absent, "the agent of host b has not connected to the controller");
}

#[test]
fn an_agent_ends_if_the_controller_is_another_one() {
    let running = Running::pinned();
    let other: Pin = "0".repeat(64).parse().unwrap();
    let ended = running.agent(Trust::Pin(other)).run(|_| {});
    assert!(matches!(ended, Err(AgentError::Distrusted { .. })), "{ended:?}");
}

#[test]
fn a_second_controller_at_the_socket_is_refused_and_a_dead_one_is_replaced() {
    let running = Running::pinned();
    let bind = |socket: &Path| {
        let (config, _) = tls::server(&tls::new_key([7; 32]), None).unwrap();
        Controller::bind("127.0.0.1:0".parse().unwrap(), socket, config, token(), |_| {})
    };
    let refused = bind(&running.socket()).err().unwrap();
    assert!(matches!(refused, ServeError::Conflict { .. }), "{refused}");
    let dead = running.folder.path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    assert!(bind(&dead).is_ok());
    let file = running.folder.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    assert!(matches!(bind(&file).err().unwrap(), ServeError::Socket { .. }));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}

/// An authority, and a key with a certificate of it for 127.0.0.1.
fn authority(folder: &Path, name: &str) -> [String; 3] {
    let script = "set -e; \
        openssl req -x509 -newkey ed25519 -nodes -days 3650 -subj /CN=$0 -keyout $0-ca.key \
            -out $0-ca.pem; \
        openssl req -newkey ed25519 -nodes -subj /CN=controller -keyout $0.key -out $0.csr; \
        printf 'subjectAltName=IP:127.0.0.1\\n' >$0.ext; \
        openssl x509 -req -in $0.csr -CA $0-ca.pem -CAkey $0-ca.key -CAcreateserial -days 3650 \
            -extfile $0.ext -out $0.pem";
    let made = Command::new("sh").args(["-c", script, name]).current_dir(folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    [format!("{name}-ca.pem"), format!("{name}.key"), format!("{name}.pem")]
        .map(|file| std::fs::read_to_string(folder.join(file)).unwrap())
}

#[test]
fn a_certificate_is_trusted_by_its_authority_and_no_other_one() {
    let folder = tempfile::tempdir().unwrap();
    let [ca, key, certificate] = authority(folder.path(), "one");
    let [other_ca, ..] = authority(folder.path(), "other");
    let running = Running::new(&key, Some(&certificate));
    let ended = running.agent(Trust::Authorities(other_ca)).run(|_| {});
    assert!(matches!(ended, Err(AgentError::Distrusted { .. })), "{ended:?}");
    // One that waits for a pinned key gets none from a controller with a certificate.
    let pin = "0".repeat(64).parse().unwrap();
    let ended = running.agent(Trust::Pin(pin)).run(|_| {});
    assert!(matches!(ended, Err(AgentError::Distrusted { .. })), "{ended:?}");
    let agent = running.agent(Trust::Authorities(ca));
    let (waits, waiting) = std::sync::mpsc::channel();
    thread::spawn(move || {
        agent.run(|notice| {
            if let Notice::Waiting = notice {
                let _ = waits.send(());
            }
        })
    });
    waiting.recv_timeout(Duration::from_secs(30)).unwrap();
    eventually("the agent", || running.names() == ["a"]);
}
