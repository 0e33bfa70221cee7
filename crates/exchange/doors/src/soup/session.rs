//! A session: who may log in, and the numbered messages that the client may ask for again.

use serde::{Deserialize, Serialize};

use super::packet::{self, Packet, packet};
use crate::limits::CLIENT_SILENCE_NS;

/// After how long without a packet the server sends a heartbeat, ns.
const HEARTBEAT_NS: u64 = 1_000_000_000;

/// Bytes of the fields of a login.
const USERNAME: usize = 6;
const PASSWORD: usize = 10;
const SESSION: usize = 10;
const NUMBER: usize = 20;
const LOGIN: usize = USERNAME + PASSWORD + SESSION + NUMBER;

/// Why a client is not let in.
pub const NOT_AUTHORISED: u8 = b'A';
/// The session that it asks for is not there, or is in use.
pub const NOT_AVAILABLE: u8 = b'S';

/// Who may log in. Names and passwords have no case.
#[derive(Debug, Clone)]
pub struct Login {
    /// In small letters.
    pub username: String,
    /// SHA-256 of the password in small letters, if one is needed.
    pub password: Option<[u8; 32]>,
}

/// A request to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginRequest {
    /// In small letters.
    pub username: String,
    /// In small letters.
    pub password: String,
    /// Empty for whichever there is.
    pub session: String,
    /// Number of the first message wanted: 0 for the latest one.
    pub next: u64,
}

impl LoginRequest {
    /// The request in a packet. Blanks may stand on both sides of a field, because clients differ.
    pub fn read(packet: &Packet) -> Option<LoginRequest> {
        if packet.kind != packet::LOGIN_REQUEST || packet.payload.len() != LOGIN {
            return None;
        }
        let text = std::str::from_utf8(&packet.payload).ok().filter(|text| text.is_ascii())?;
        let (username, rest) = text.split_at(USERNAME);
        let (password, rest) = rest.split_at(PASSWORD);
        let (session, number) = rest.split_at(SESSION);
        let number = number.trim_matches(' ');
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let next = if number.is_empty() { Some(0) } else { number.parse().ok() };
        Some(LoginRequest {
            username: username.trim_matches(' ').to_ascii_lowercase(),
            password: password.trim_matches(' ').to_ascii_lowercase(),
            session: session.trim_matches(' ').to_string(),
            next: next.filter(|_| is_number)?,
        })
    }
}

/// A change that must survive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The session has this name.
    Begun(String),
    /// A message was sent under the next number: its bytes in hexadecimal digits.
    Sent(String),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Write this before anything is sent.
    Keep(Change),
    /// Send these bytes.
    Send(Vec<u8>),
    /// Hand this message to the application.
    Deliver(Vec<u8>),
    /// End the connection once all is sent; why.
    Close(String),
}

/// A session.
#[derive(Debug)]
pub struct Session {
    login: Login,
    name: String,
    sent: Vec<Vec<u8>>,
    is_logged_in: bool,
    received_ns: u64,
    sent_ns: u64,
    outputs: Vec<Output>,
}

impl Session {
    /// A session that nobody has used.
    pub fn new(login: Login) -> Session {
        Session {
            login,
            name: String::new(),
            sent: vec![],
            is_logged_in: false,
            received_ns: 0,
            sent_ns: 0,
            outputs: vec![],
        }
    }

    /// Who may log in.
    pub fn login(&self) -> &Login {
        &self.login
    }

    /// Whether it has a name: before, nothing can be sent.
    pub fn has_begun(&self) -> bool {
        !self.name.is_empty()
    }

    /// Whether a client has logged in.
    pub fn is_logged_in(&self) -> bool {
        self.is_logged_in
    }

    /// What is to be done since the last call.
    pub fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Takes over what was kept.
    pub fn restore(&mut self, change: Change) {
        match change {
            Change::Begun(name) => (self.name, self.sent) = (name, vec![]),
            Change::Sent(hex) => self.sent.push(nm_codec::hex::read(&hex).unwrap_or_default()),
        }
    }

    /// All that must be kept of it.
    pub fn snapshot(&self) -> impl Iterator<Item = Change> {
        let begun = self.has_begun().then(|| Change::Begun(self.name.clone()));
        let sent = self.sent.iter().map(|bytes| Change::Sent(nm_codec::hex::write(bytes)));
        begun.into_iter().chain(sent)
    }

    /// Gives it a name, which no session had before: the µs since 1970 in letters and digits.
    pub fn begin(&mut self, now_ns: u64) {
        let (mut name, mut rest) = ([b'0'; SESSION], now_ns / 1_000);
        for digit in name.iter_mut().rev() {
            *digit = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[(rest % 36) as usize];
            rest /= 36;
        }
        self.name = String::from_utf8_lossy(&name).into_owned();
        self.outputs.push(Output::Keep(Change::Begun(self.name.clone())));
    }

    /// Sends a message under the next number; if nobody is there, the client gets it later.
    pub fn send(&mut self, message: Vec<u8>, now_ns: u64) {
        assert!(self.has_begun(), "a session has a name before it sends");
        self.outputs.push(Output::Keep(Change::Sent(nm_codec::hex::write(&message))));
        if self.is_logged_in {
            self.emit(packet::SEQUENCED, &message, now_ns);
        }
        self.sent.push(message);
    }

    fn emit(&mut self, kind: u8, payload: &[u8], now_ns: u64) {
        self.sent_ns = now_ns;
        self.outputs.push(Output::Send(packet(kind, payload)));
    }

    /// The connection has ended.
    pub fn disconnected(&mut self) {
        self.is_logged_in = false;
    }

    /// Ends the connection, not the session.
    pub fn close(&mut self, why: &str) {
        self.is_logged_in = false;
        self.outputs.push(Output::Close(why.to_string()));
    }

    /// A packet came.
    pub fn receive(&mut self, packet: &Packet, now_ns: u64) {
        self.received_ns = now_ns;
        if !self.is_logged_in {
            return self.log_in(packet, now_ns);
        }
        match packet.kind {
            packet::UNSEQUENCED => self.outputs.push(Output::Deliver(packet.payload.clone())),
            packet::CLIENT_HEARTBEAT | packet::DEBUG => {}
            packet::LOGOUT => self.close("logged out"),
            packet::LOGIN_REQUEST => self.close("a second login over one connection"),
            kind => self.close(&format!("a packet of type 0x{kind:02x}, which no client sends")),
        }
    }

    fn log_in(&mut self, packet: &Packet, now_ns: u64) {
        let Some(request) = LoginRequest::read(packet) else {
            return self.close("the first packet is no login");
        };
        let hash = crate::settings::hash(request.password.as_bytes());
        if request.username != self.login.username
            || self.login.password.is_some_and(|password| password != hash)
        {
            return self.refuse(NOT_AUTHORISED, "a login with a wrong password");
        }
        let last = self.sent.len() as u64;
        let is_other = !request.session.is_empty() && request.session != self.name;
        if is_other || request.next > last + 1 {
            return self.refuse(NOT_AVAILABLE, "a login to messages that are not there");
        }
        let first = if request.next == 0 { last.max(1) } else { request.next };
        let accepted = format!("{:>SESSION$}{first:>NUMBER$}", self.name);
        self.is_logged_in = true;
        self.emit(packet::LOGIN_ACCEPTED, accepted.as_bytes(), now_ns);
        let again = self.sent[first as usize - 1..].iter();
        let again: Vec<u8> = again.flat_map(|it| packet::packet(packet::SEQUENCED, it)).collect();
        self.outputs.push(Output::Send(again));
    }

    fn refuse(&mut self, reason: u8, why: &str) {
        self.outputs.push(Output::Send(packet(packet::LOGIN_REJECTED, &[reason])));
        self.close(why);
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ns: u64) {
        if !self.is_logged_in {
            return;
        }
        if now_ns.saturating_sub(self.received_ns) >= CLIENT_SILENCE_NS {
            self.close("the client is silent");
        } else if now_ns.saturating_sub(self.sent_ns) >= HEARTBEAT_NS {
            self.emit(packet::SERVER_HEARTBEAT, b"", now_ns);
        }
    }
}
