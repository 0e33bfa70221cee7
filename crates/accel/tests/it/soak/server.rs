//! The servers of a soak: one for each way of waiting. They check every byte of every request.

use std::collections::HashMap;
use std::thread;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, POLLIN, POLLOUT, pollfd};

use super::plan::{HEADER, Waiting, header, request_bytes, response_bytes, words};
use super::task::{WAITING, waiting_of};
use crate::calls::*;
use crate::support::*;

/// One connection: what was received and not answered yet, and what is to be sent.
#[derive(Debug, Default)]
struct Session {
    received: Vec<u8>,
    sending: Vec<u8>,
    requested: usize,
    answered: usize,
    has_ended: bool,
}

impl Session {
    /// Takes received bytes: checks each complete request and appends its response.
    fn feed(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
        while self.received.len() >= HEADER {
            let [pattern, requested, answered, request, response] = words(&self.received);
            let place = [pattern, self.requested as u64, self.answered as u64, request, response];
            assert_eq!(self.received[..HEADER], header(place), "header of a request");
            assert_eq!([requested, answered], [place[1], place[2]], "order of the requests");
            let end = HEADER + request as usize;
            if self.received.len() < end {
                return;
            }
            let wanted = request_bytes(pattern, self.requested, request as usize);
            assert_bytes(&self.received[HEADER..end], &wanted);
            self.received.drain(..end);
            self.requested += request as usize;
            let answer = response_bytes(pattern, self.answered, response as usize);
            self.sending.extend_from_slice(&answer);
            self.answered += response as usize;
        }
    }

    /// One receive; false if there is nothing more now.
    fn receive(&mut self, fd: Fd, buffer: &mut [u8]) -> bool {
        match recv(fd, buffer, 0) {
            Ok(0) | Err(RESET) => self.has_ended = true,
            Ok(count) => self.feed(&buffer[..count]),
            Err(AGAIN) => return false,
            Err(INTR) => {}
            Err(error) => panic!("recv: {error:?}"),
        }
        !self.has_ended
    }

    /// Sends what the socket takes.
    fn send(&mut self, fd: Fd) {
        while !self.sending.is_empty() && !self.has_ended {
            match send(fd, &self.sending, libc::MSG_NOSIGNAL) {
                Ok(count) => drop(self.sending.drain(..count)),
                Err(AGAIN) => return,
                Err(RESET | PIPE) => self.has_ended = true,
                Err(INTR) => {}
                Err(error) => panic!("send: {error:?}"),
            }
        }
    }
}

/// Serves one connection with blocking calls.
fn serve_blocking(fd: Fd) {
    let (mut session, mut buffer) = (Session::default(), vec![0; 8192]);
    while session.receive(fd, &mut buffer) {
        session.send(fd);
    }
    close(fd).unwrap();
}

/// The program of a server: writes its port to stdout and serves until it is killed.
pub(super) fn serve() {
    let (listening, address) = listener(Family::V4);
    write(libc::STDOUT_FILENO, format!("{}\n", address.port()).as_bytes()).unwrap();
    match waiting_of(&std::env::var(WAITING).unwrap()) {
        Waiting::Blocking => loop {
            let fd = accept(listening).unwrap();
            thread::spawn(move || or_abort(|| serve_blocking(fd)));
        },
        Waiting::Split => serve_by_processes(listening),
        Waiting::Poll => serve_by_list(listening, &mut wait_by_poll),
        Waiting::Select => serve_by_list(listening, &mut wait_by_select),
        Waiting::EpollLevel => serve_by_epoll(listening, 0),
        Waiting::EpollEdge => serve_by_epoll(listening, libc::EPOLLET as u32),
        Waiting::EpollOneShot => serve_by_threads(listening),
    }
}

/// A thread of a server that fails ends the whole server.
fn or_abort(body: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
        std::process::abort();
    }
}

fn serve_by_processes(listening: Fd) -> ! {
    // SAFETY: children are not waited for.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    loop {
        let fd = accept(listening).unwrap();
        spawn(|| {
            close(listening).unwrap();
            serve_blocking(fd);
        });
        close(fd).unwrap();
    }
}

type Wait<'a> = &'a mut dyn FnMut(&[(Fd, bool)]) -> Vec<Fd>;

fn wait_by_poll(all: &[(Fd, bool)]) -> Vec<Fd> {
    let events = |sends| if sends { POLLIN | POLLOUT } else { POLLIN };
    let mut list: Vec<pollfd> =
        all.iter().map(|&(fd, sends)| pollfd { fd, events: events(sends), revents: 0 }).collect();
    poll(&mut list, -1).unwrap();
    list.iter().filter(|entry| entry.revents != 0).map(|entry| entry.fd).collect()
}

fn wait_by_select(all: &[(Fd, bool)]) -> Vec<Fd> {
    let mut readable = Set::of(&all.iter().map(|(fd, _)| *fd).collect::<Vec<_>>());
    let senders: Vec<Fd> = all.iter().filter(|(_, sends)| *sends).map(|(fd, _)| *fd).collect();
    let mut writable = Set::of(&senders);
    select(Some(&mut readable), Some(&mut writable), None, None).unwrap();
    let is_ready = |fd: Fd| readable.has(fd) || writable.has(fd);
    all.iter().map(|(fd, _)| *fd).filter(|fd| is_ready(*fd)).collect()
}

fn serve_by_list(listening: Fd, wait: Wait<'_>) -> ! {
    let mut sessions: HashMap<Fd, Session> = HashMap::new();
    let mut buffer = vec![0; 8192];
    nonblocking(listening, true);
    loop {
        let mut all = vec![(listening, false)];
        all.extend(sessions.iter().map(|(fd, session)| (*fd, !session.sending.is_empty())));
        for fd in wait(&all) {
            if fd == listening {
                accept_all(listening, |fd| drop(sessions.insert(fd, Session::default())));
                continue;
            }
            let session = sessions.get_mut(&fd).expect("a session");
            session.receive(fd, &mut buffer);
            session.send(fd);
            if session.has_ended {
                sessions.remove(&fd);
                close(fd).unwrap();
            }
        }
    }
}

fn accept_all(listening: Fd, mut accepted: impl FnMut(Fd)) {
    while let Ok(fd) = accept4(listening, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
        accepted(fd);
    }
}

/// Events of a set. A wait is interrupted when the soak stops and continues this program.
fn waited(set: Fd, most: usize) -> Vec<(u32, u64)> {
    loop {
        match epoll_wait(set, most, -1) {
            Err(INTR) => {}
            events => return events.unwrap(),
        }
    }
}

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;

/// Level-triggered: one receive for each event, and EPOLLOUT only while something is to be sent.
/// Edge-triggered: all up to EAGAIN.
fn serve_by_epoll(listening: Fd, edge: u32) -> ! {
    let set = epoll_create();
    let mut sessions: HashMap<Fd, Session> = HashMap::new();
    let mut buffer = vec![0; 8192];
    nonblocking(listening, true);
    epoll_ctl(set, EPOLL_CTL_ADD, listening, IN, listening as u64).unwrap();
    loop {
        for (_, data) in waited(set, 64) {
            let fd = data as Fd;
            if fd == listening {
                accept_all(listening, |fd| {
                    let events = if edge == 0 { IN } else { IN | OUT | edge };
                    epoll_ctl(set, EPOLL_CTL_ADD, fd, events, fd as u64).unwrap();
                    sessions.insert(fd, Session::default());
                });
                continue;
            }
            let session = sessions.get_mut(&fd).expect("a session");
            let waited = !session.sending.is_empty();
            while session.receive(fd, &mut buffer) && edge != 0 {}
            session.send(fd);
            let waits = !session.sending.is_empty();
            if session.has_ended {
                sessions.remove(&fd);
                close(fd).unwrap();
            } else if edge == 0 && waits != waited {
                let events = if waits { IN | OUT } else { IN };
                epoll_ctl(set, EPOLL_CTL_MOD, fd, events, fd as u64).unwrap();
            }
        }
    }
}

/// Three threads wait on one set; each event disarms its member until it was served.
fn serve_by_threads(listening: Fd) -> ! {
    let set = epoll_create();
    let once = IN | libc::EPOLLONESHOT as u32;
    for _ in 0..3 {
        thread::spawn(move || or_abort(|| serve_one_shots(set)));
    }
    loop {
        let fd = accept4(listening, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC).unwrap();
        let session = Box::into_raw(Box::new((fd, Session::default())));
        epoll_ctl(set, EPOLL_CTL_ADD, fd, once, session as u64).unwrap();
    }
}

fn serve_one_shots(set: Fd) {
    let mut buffer = vec![0; 8192];
    loop {
        for (_, data) in waited(set, 4) {
            let place = data as *mut (Fd, Session);
            // SAFETY: a box made by `serve_by_threads`; only one thread has an event of it.
            let (fd, session) = unsafe { &mut *place };
            session.receive(*fd, &mut buffer);
            session.send(*fd);
            if session.has_ended {
                close(*fd).unwrap();
                // SAFETY: the box is freed once, after its last event.
                drop(unsafe { Box::from_raw(place) });
                continue;
            }
            let out = if session.sending.is_empty() { 0 } else { OUT };
            let events = IN | out | libc::EPOLLONESHOT as u32;
            epoll_ctl(set, EPOLL_CTL_MOD, *fd, events, data).unwrap();
        }
    }
}
