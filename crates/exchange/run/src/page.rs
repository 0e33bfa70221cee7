//! Answers browsers and collectors of metrics on this host by HTTP: a page that shows the network
//! live, its figures, and whether it trades.
//!
//! Nobody but this host can connect. A page of another site in a browser here can read nothing: the
//! header `Host` must name this address. A request causes a look at the nodes, one a second at
//! most. While nobody asks, there is none.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{str, thread};

use nm_exchange::network::Network;
use nm_model::{Failure, FailureKind};
use nm_operate::health::Trading;
use nm_operate::live::{Event, EventKind, Events, LiveView, Sight};
use nm_sys::clock::Deadline;
use serde_json::json;

use crate::follow::{FOLLOWED_MAX, Followed};

/// Clients at once.
pub const CLIENTS_MAX: usize = 16;

/// Bytes of a request, which is its head.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Header lines of a request.
pub const HEADERS_MAX: usize = 64;

/// How long a client may take for its request, and for reading any part of an answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(5);

/// How old an answer may be.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Makes the figures of a look.
pub type Metrics = dyn Fn(&Sight) -> String + Send + Sync;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The page.
    Page,
    /// What the page shows, again and again.
    Events,
    /// The figures.
    Metrics,
    /// Whether the network trades.
    Health,
    /// Nothing that is answered: the status line's code and words, and a sentence.
    Refused(&'static str, &'static str),
}

/// What a request asks for; none if it is not complete. `port` is that of this server.
pub fn asked(bytes: &[u8], port: u16) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            let code = "431 Request Header Fields Too Large";
            return Some(Asked::Refused(code, "the request is too long"));
        }
        Err(_) => return Some(Asked::Refused("400 Bad Request", "this is no request of HTTP/1.1")),
    }
    let is_host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
    let mut hosts = request.headers.iter().filter(is_host);
    let (first, second) = (hosts.next(), hosts.next());
    if !first.is_some_and(|host| is_this_host(host.value, port)) || second.is_some() {
        let why = "the header Host must name this address, such as 127.0.0.1 with the port";
        return Some(Asked::Refused("403 Forbidden", why));
    }
    if request.method != Some("GET") {
        return Some(Asked::Refused("405 Method Not Allowed", "only GET is answered"));
    }
    Some(match request.path {
        Some("/") => Asked::Page,
        Some("/events") => Asked::Events,
        Some("/metrics") => Asked::Metrics,
        Some("/healthz") => Asked::Health,
        _ => Asked::Refused("404 Not Found", "there are /, /events, /metrics and /healthz"),
    })
}

fn is_this_host(value: &[u8], port: u16) -> bool {
    let Some((host, named)) = str::from_utf8(value).ok().and_then(|text| text.rsplit_once(':'))
    else {
        return false;
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    is_local && named == port.to_string()
}

/// What is known of the network, for all clients.
struct Known {
    view: LiveView,
    /// Until when the last look is new enough.
    fresh_until: Deadline,
    last: Result<Arc<Sight>, String>,
    followed: Vec<Followed>,
}

/// Answers clients on this host until the process ends.
pub struct Page {
    known: Mutex<Known>,
    events: Mutex<Events>,
    clients: AtomicUsize,
    metrics: Box<Metrics>,
    document: &'static str,
    port: u16,
}

impl Page {
    /// Listens at an address of this host's loopback, and answers in threads of its own. Among the
    /// events are the lines of the files that are `followed`.
    ///
    /// # Errors
    /// If the address is not of the loopback or cannot be had, or too many files are followed.
    pub fn serve(
        address: SocketAddr,
        network: &Network,
        document: &'static str,
        metrics: Box<Metrics>,
        followed: Vec<Followed>,
    ) -> Result<Arc<Page>, Failure> {
        if !address.ip().is_loopback() {
            let message = format!("the page is for this host alone: {address} is not of loopback");
            return Err(Failure::new(FailureKind::BadRequest, message));
        }
        if followed.len() > FOLLOWED_MAX {
            let message = format!("the page follows {FOLLOWED_MAX} files at most");
            return Err(Failure::new(FailureKind::BadRequest, message));
        }
        let failed = |error: io::Error| {
            let message = format!("the page cannot be served at {address}: {error}");
            Failure::new(FailureKind::NotAvailable, message)
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let page = Arc::new(Page {
            known: Mutex::new(Known {
                view: LiveView::new(network),
                fresh_until: Deadline::after(Duration::ZERO),
                last: Err("the network was not looked at yet".to_string()),
                followed,
            }),
            events: Mutex::default(),
            clients: AtomicUsize::new(0),
            metrics,
            document,
            port,
        });
        let serving = Arc::clone(&page);
        thread::Builder::new()
            .name("page".to_string())
            .spawn(move || accept(&serving, &listener))
            .map_err(failed)?;
        Ok(page)
    }

    /// Where it is.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Notes what the supervisor did.
    pub fn note(&self, sentence: &str) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.add(unix_ms(), EventKind::Service, sentence);
    }

    /// What the last look has seen, which is a new one if that is too old; why there is none.
    fn sight(&self) -> Result<Arc<Sight>, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.fresh_until.passed() {
            let seen = known.view.look();
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            let at_unix_ms = unix_ms();
            for followed in &mut known.followed {
                let lines = followed.new_lines();
                lines.iter().for_each(|line| events.add_line(at_unix_ms, followed.name(), line));
            }
            if let Ok(sight) = &seen {
                for (kind, sentence) in &sight.happened {
                    events.add(at_unix_ms, *kind, sentence);
                }
            }
            known.last = seen.map(Arc::new).map_err(|failure| failure.to_string());
            known.fresh_until = Deadline::after(LOOK_INTERVAL);
        }
        known.last.clone()
    }

    fn answer(&self, client: &mut TcpStream) -> io::Result<()> {
        client.set_write_timeout(Some(CLIENT_LIMIT))?;
        match read_request(client, self.port)? {
            Asked::Refused(status, why) => respond(client, status, TEXT, &format!("{why}\n")),
            Asked::Page => respond(client, OK, "text/html; charset=utf-8", self.document),
            Asked::Metrics => match self.sight() {
                Ok(sight) => respond(client, OK, OPENMETRICS, &(self.metrics)(&sight)),
                Err(why) => respond(client, UNAVAILABLE, TEXT, &format!("{why}\n")),
            },
            Asked::Health => {
                let trading = self.sight().map(|sight| sight.trading);
                let status = match trading {
                    Ok(Trading::Healthy | Trading::Degraded) => OK,
                    Ok(Trading::NotTrading) | Err(_) => UNAVAILABLE,
                };
                let words = trading.map_or_else(|why| why, |it| it.words().to_string());
                respond(client, status, TEXT, &format!("{words}\n"))
            }
            Asked::Events => self.stream(client),
        }
    }

    /// Sends what is seen as server-sent events, until the client has gone.
    fn stream(&self, client: &mut TcpStream) -> io::Result<()> {
        write!(client, "{}", head(OK, "text/event-stream", None))?;
        loop {
            let sight = self.sight();
            let events: Vec<Event> = {
                let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
                events.iter().rev().cloned().collect()
            };
            let seen = match &sight {
                Ok(sight) => {
                    json!({"sight": **sight, "requests_per_s": sight.requests_per_s(),
                        "cells": sight.status.cells, "events": events, "at_unix_ms": unix_ms()})
                }
                Err(why) => json!({"failed": why, "events": events, "at_unix_ms": unix_ms()}),
            };
            // JSON has no line breaks, which would end the event.
            write!(client, "data: {seen}\n\n")?;
            thread::sleep(LOOK_INTERVAL);
        }
    }
}

const OK: &str = "200 OK";
const UNAVAILABLE: &str = "503 Service Unavailable";
const TEXT: &str = "text/plain; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a client may show, and load: nothing from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

fn head(status: &str, kind: &str, length: Option<usize>) -> String {
    let length = length.map(|bytes| format!("Content-Length: {bytes}\r\n")).unwrap_or_default();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}Connection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Referrer-Policy: no-referrer\r\nContent-Security-Policy: {POLICY}\r\n\r\n"
    )
}

fn respond(client: &mut TcpStream, status: &str, kind: &str, body: &str) -> io::Result<()> {
    let head = head(status, kind, Some(body.len()));
    client.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())
}

/// Reads one request, within the time and the length that it may have.
fn read_request(client: &mut TcpStream, port: u16) -> io::Result<Asked> {
    let deadline = Deadline::after(CLIENT_LIMIT);
    let mut bytes = [0; REQUEST_BYTES_MAX];
    let mut length = 0;
    loop {
        if deadline.passed() {
            return Ok(Asked::Refused("408 Request Timeout", "the request came too slowly"));
        }
        client.set_read_timeout(Some(deadline.remaining().max(Duration::from_millis(1))))?;
        match client.read(&mut bytes[length..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => length += more,
            Err(error) if is_late(&error) => continue,
            Err(error) => return Err(error),
        }
        if let Some(asked) = asked(&bytes[..length], port) {
            return Ok(asked);
        }
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// A client's place, which is free again when this is dropped.
struct Place(Arc<Page>);

impl Place {
    fn take(page: &Arc<Page>) -> Option<Place> {
        let n_before = page.clients.fetch_add(1, Ordering::Relaxed);
        // One too many is counted until it is dropped, which is here.
        Some(Place(Arc::clone(page))).filter(|_| n_before < CLIENTS_MAX)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers each client in a thread, as many at once as there may be.
fn accept(page: &Arc<Page>, listener: &TcpListener) {
    for client in listener.incoming() {
        let Ok(mut client) = client else {
            // Such as too many open files: a pause lets others end.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let Some(place) = Place::take(page) else {
            refuse(&mut client);
            continue;
        };
        let serve = move || {
            // A client that has gone is no reason for a sentence.
            let _ = place.0.answer(&mut client);
        };
        // Without a thread the client is closed, and its place is free again.
        let _ = thread::Builder::new().name("page client".to_string()).spawn(serve);
    }
}

/// Tells a client that there are too many. Its request is read first: a connection that is closed
/// with bytes that nobody has read is reset, and the answer is lost.
fn refuse(client: &mut TcpStream) {
    let limit = Some(Duration::from_millis(100));
    let is_limited = client.set_write_timeout(limit).and(client.set_read_timeout(limit)).is_ok();
    if is_limited && client.read(&mut [0; REQUEST_BYTES_MAX]).is_ok() {
        let _ = respond(client, UNAVAILABLE, TEXT, "there are too many clients\n");
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use nm_exchange::link::Address;
    use nm_exchange::network::Node;

    use super::*;

    fn request(first: &str, host: &str) -> Vec<u8> {
        format!("{first} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
    }

    fn refused(bytes: &[u8]) -> Option<&'static str> {
        match asked(bytes, 80) {
            Some(Asked::Refused(status, _)) => Some(status),
            _ => None,
        }
    }

    #[test]
    fn a_request_is_answered_only_by_the_name_of_this_host() {
        for host in ["127.0.0.1:80", "localhost:80", "LOCALHOST:80", "[::1]:80"] {
            assert_eq!(asked(&request("GET /metrics", host), 80), Some(Asked::Metrics), "{host}");
        }
        for host in ["evil.example:80", "127.0.0.1", "127.0.0.1:81", "localhost.evil:80", ":80"] {
            let status = refused(&request("GET /metrics", host));
            assert_eq!(status, Some("403 Forbidden"), "{host}");
        }
        let twice = b"GET / HTTP/1.1\r\nHost: localhost:80\r\nHost: evil:80\r\n\r\n";
        assert_eq!(refused(twice), Some("403 Forbidden"));
        assert_eq!(refused(b"GET / HTTP/1.1\r\n\r\n"), Some("403 Forbidden"));
    }

    #[test]
    fn only_get_of_what_is_there_is_answered() {
        let of = |first| asked(&request(first, "localhost:80"), 80);
        assert_eq!(of("GET /"), Some(Asked::Page));
        assert_eq!(of("GET /events"), Some(Asked::Events));
        assert_eq!(of("GET /healthz"), Some(Asked::Health));
        assert_eq!(refused(&request("POST /", "localhost:80")), Some("405 Method Not Allowed"));
        assert_eq!(refused(&request("GET /../x", "localhost:80")), Some("404 Not Found"));
    }

    #[test]
    fn a_request_has_a_length_and_any_bytes_are_refused() {
        assert_eq!(asked(b"GET / HT", 80), None, "it is not complete");
        assert_eq!(refused(b"\0\0\0\0"), Some("400 Bad Request"));
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(REQUEST_BYTES_MAX));
        let too_long = "431 Request Header Fields Too Large";
        assert_eq!(refused(&long.as_bytes()[..REQUEST_BYTES_MAX]), Some(too_long));
        let many = "a: b\r\n".repeat(HEADERS_MAX + 1);
        assert_eq!(refused(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()), Some(too_long));
        let page = include_str!("../../../../docs/limits.md");
        for line in [
            format!("| clients of the page at once | {CLIENTS_MAX} |"),
            format!("| bytes of a request to the page | {REQUEST_BYTES_MAX} |"),
            format!("| header lines of a request to the page | {HEADERS_MAX} |"),
        ] {
            assert!(page.contains(&line), "{line}");
        }
    }

    fn page() -> Arc<Page> {
        let network = Network::new("1-1-1-1".parse().unwrap(), |node| {
            let address = Address::Unix(format!("/nowhere/{}", node.file_name()).into());
            Node { address, replication: None }
        });
        let address = "127.0.0.1:0".parse().unwrap();
        let metrics = |sight: &Sight| format!("{} nodes\n# EOF\n", sight.nodes.len());
        Page::serve(address, &network, "<!doctype html>", Box::new(metrics), vec![]).unwrap()
    }

    fn get(page: &Page, path: &str) -> String {
        let mut client = TcpStream::connect(("127.0.0.1", page.port())).unwrap();
        client.write_all(&request(path, &format!("127.0.0.1:{}", page.port()))).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_network_that_does_not_answer_is_not_healthy() {
        let page = page();
        let health = get(&page, "GET /healthz");
        assert!(
            health.starts_with("HTTP/1.1 503 ") && health.ends_with("not trading\n"),
            "{health}"
        );
        let metrics = get(&page, "GET /metrics");
        assert!(metrics.starts_with("HTTP/1.1 200 ") && metrics.ends_with("# EOF\n"), "{metrics}");
        let document = get(&page, "GET /");
        assert!(document.ends_with("\r\n\r\n<!doctype html>"), "{document}");
    }

    #[test]
    fn clients_beyond_the_limit_are_told_so() {
        let page = page();
        let idle: Vec<TcpStream> = (0..CLIENTS_MAX)
            .map(|_| TcpStream::connect(("127.0.0.1", page.port())).unwrap())
            .collect();
        let beyond = get(&page, "GET /");
        assert!(beyond.starts_with("HTTP/1.1 503 ") && beyond.contains("too many"), "{beyond}");
        drop(idle);
        while page.clients.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        assert!(get(&page, "GET /").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn the_page_is_on_loopback_alone() {
        let page = page();
        let network = page.known.lock().unwrap().view.network().clone();
        let away = "0.0.0.0:0".parse().unwrap();
        let refused = Page::serve(away, &network, "", Box::new(|_| String::new()), vec![]);
        assert!(refused.err().unwrap().to_string().contains("not of loopback"));
    }
}
