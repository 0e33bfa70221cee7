//! The clients of a soak. Each has several connections, and a request and a response on each of
//! them in every round. Between the rounds they do what programs do with connections.

use std::process::{Command, Stdio};
use std::thread;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, POLLIN, pollfd};

use super::plan::{End, Event, Limit, Plan, Waiting, header, request_bytes, response_bytes};
use super::task::{FOREIGN_CLIENT, LIMIT_MS, PORT, ROUND, SEED, number};
use crate::calls::*;
use crate::harness::{Side, another, c_string, state};
use crate::past::write_by_instruction;
use crate::support::*;

/// One connection of a client.
#[derive(Debug, Clone)]
struct Link {
    fd: Fd,
    idx: usize,
    requested: usize,
    answered: usize,
    /// The response that is awaited.
    response: Vec<u8>,
    got: usize,
    /// The peer has received what was sent past the library: from now on both keep the order.
    is_sent_past: bool,
}

struct Client {
    plan: Plan,
    links: Vec<Link>,
    set: Fd,
}

/// Descriptors of the connections after an exec, and of a program without the library.
const DESCRIPTORS: &str = "NEARMETAL_SOAK_DESCRIPTORS";

/// Parts of a request that senders send by turns.
const TURNS: usize = 6;

/// Sets a limit for this process and those that it starts.
fn limit(limit: Limit) {
    let (resource, number) = match limit {
        Limit::None => return,
        Limit::FileSize => (libc::RLIMIT_FSIZE, 64 * 1024),
        Limit::Descriptors => (libc::RLIMIT_NOFILE, 64),
        Limit::LockedMemory => (libc::RLIMIT_MEMLOCK, 0),
        // More than a new program maps, and than the stacks of its threads.
        Limit::Memory => (libc::RLIMIT_AS, 256 * 1024 * 1024),
    };
    let value = libc::rlimit { rlim_cur: number, rlim_max: number };
    // SAFETY: the value is live.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const value) }, 0, "{limit:?}");
}

/// The program of a client.
pub(super) fn run() {
    let plan = Plan::of(number(SEED));
    let port = number(PORT) as u16;
    let first = number(ROUND) as usize;
    if first == 0 {
        limit(plan.limit);
    }
    let inherited = std::env::var(DESCRIPTORS).unwrap_or_default();
    let mut fds: Vec<Fd> = inherited.split_whitespace().map(|fd| fd.parse().unwrap()).collect();
    while fds.len() < plan.connections {
        fds.push(connected(&Family::V4.address(port)));
    }
    let mut client = Client { set: epoll_create(), links: vec![], plan };
    for (idx, fd) in fds.into_iter().enumerate() {
        let (mut requested, mut answered) = (0, 0);
        for round in 0..first {
            let lengths = client.plan.lengths(idx, round);
            requested += lengths.0;
            answered += lengths.1;
        }
        let link = Link::new(fd, idx, [requested, answered]);
        client.register(&link);
        client.links.push(link);
    }
    client.run(first);
}

impl Client {
    fn run(&mut self, first: usize) {
        for round in first..self.plan.rounds {
            for idx in 0..self.links.len() {
                self.event(idx, round, first);
            }
            let last = round + 1 == self.plan.rounds;
            if last && self.plan.end == End::Killed {
                self.send_requests(round);
                kill(std::process::id().cast_signed(), libc::SIGKILL);
            }
            self.round(round);
        }
    }

    /// One request and one response on each connection that has not had its round yet.
    fn round(&mut self, round: usize) {
        if self.plan.waiting == Waiting::Split {
            self.round_by_threads(round);
            return;
        }
        self.send_requests(round);
        match self.plan.waiting {
            Waiting::Blocking | Waiting::Split => {
                self.links.iter_mut().for_each(Link::receive_all);
            }
            Waiting::Poll => while self.poll_once() {},
            Waiting::Select => while self.select_once() {},
            Waiting::EpollLevel | Waiting::EpollEdge | Waiting::EpollOneShot => {
                while self.epoll_once() {}
            }
        }
    }

    fn send_requests(&mut self, round: usize) {
        for link in &mut self.links {
            let Some(request) = link.begin(&self.plan, round) else { continue };
            if link.is_sent_past {
                let parts = request.chunks(request.len().div_ceil(TURNS)).enumerate();
                parts.for_each(|(turn, part)| match turn % 2 {
                    0 => send_by_instruction(link.fd, part),
                    _ => send_all(link.fd, part),
                });
            } else {
                send_all(link.fd, &request);
            }
        }
    }

    fn round_by_threads(&mut self, round: usize) {
        let plan = &self.plan;
        thread::scope(|scope| {
            for link in &mut self.links {
                let Some(request) = link.begin(plan, round) else { continue };
                let fd = link.fd;
                scope.spawn(move || send_all(fd, &request));
                scope.spawn(move || link.receive_all());
            }
        });
    }

    fn waiting(&self) -> Vec<Fd> {
        self.links.iter().filter(|link| link.waits()).map(|link| link.fd).collect()
    }

    fn receive_of(&mut self, fd: Fd, drain: bool) {
        let link = self.links.iter_mut().find(|link| link.fd == fd).expect("a connection");
        while link.receive(libc::MSG_DONTWAIT) && drain && link.waits() {}
    }

    fn poll_once(&mut self) -> bool {
        let mut list: Vec<pollfd> = self
            .waiting()
            .into_iter()
            .map(|fd| pollfd { fd, events: POLLIN, revents: 0 })
            .collect();
        if list.is_empty() {
            return false;
        }
        let count = poll(&mut list, LIMIT_MS).unwrap();
        assert!(count > 0, "poll: nothing for {LIMIT_MS} ms: {:?}", self.stalled());
        for entry in list.iter().filter(|entry| entry.revents != 0) {
            self.receive_of(entry.fd, false);
        }
        true
    }

    fn select_once(&mut self) -> bool {
        let waiting = self.waiting();
        if waiting.is_empty() {
            return false;
        }
        let mut readable = Set::of(&waiting);
        let mut limit_us = i64::from(LIMIT_MS) * 1000;
        let count = select(Some(&mut readable), None, None, Some(&mut limit_us)).unwrap();
        assert!(count > 0, "select: nothing for {LIMIT_MS} ms: {:?}", self.stalled());
        for fd in waiting {
            if readable.has(fd) {
                self.receive_of(fd, false);
            }
        }
        true
    }

    fn epoll_once(&mut self) -> bool {
        if self.waiting().is_empty() {
            return false;
        }
        let found = match epoll_wait(self.set, 8, LIMIT_MS) {
            // The soak has stopped and continued this program.
            Err(INTR) => return true,
            found => found.unwrap(),
        };
        assert!(!found.is_empty(), "epoll: nothing for {LIMIT_MS} ms: {:?}", self.stalled());
        for (_, idx) in found {
            let fd = self.links[idx as usize].fd;
            self.receive_of(fd, self.plan.waiting == Waiting::EpollEdge);
            if self.plan.waiting == Waiting::EpollOneShot {
                epoll_ctl(self.set, EPOLL_CTL_MOD, fd, self.events(), idx).unwrap();
            }
        }
        true
    }

    fn events(&self) -> u32 {
        let kind = match self.plan.waiting {
            Waiting::EpollEdge => libc::EPOLLET as u32,
            Waiting::EpollOneShot => libc::EPOLLONESHOT as u32,
            _ => 0,
        };
        libc::EPOLLIN as u32 | kind
    }

    fn register(&self, link: &Link) {
        epoll_ctl(self.set, EPOLL_CTL_ADD, link.fd, self.events(), link.idx as u64).unwrap();
    }

    /// The connections that wait for a response.
    fn stalled(&self) -> Vec<String> {
        let links = self.links.iter().filter(|link| link.waits());
        links
            .map(|link| {
                let (wanted, state) = (link.response.len(), state(link.fd));
                format!("{}: {} of {wanted} bytes, state {state:?}", link.fd, link.got)
            })
            .collect()
    }
}

/// Sends all bytes past the library.
fn send_by_instruction(fd: Fd, mut rest: &[u8]) {
    while !rest.is_empty() {
        // SAFETY: the bytes are live.
        let sent = unsafe { write_by_instruction(fd, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(sent) {
            Ok(sent) => rest = &rest[sent..],
            Err(_) => assert_eq!(sent, -(libc::EINTR as isize), "write"),
        }
    }
}

impl Link {
    fn new(fd: Fd, idx: usize, [requested, answered]: [usize; 2]) -> Link {
        let (response, got) = (vec![], 0);
        Link { fd, idx, requested, answered, response, got, is_sent_past: false }
    }

    fn waits(&self) -> bool {
        self.got < self.response.len()
    }

    /// The request of a round; none if the round was made already.
    fn begin(&mut self, plan: &Plan, round: usize) -> Option<Vec<u8>> {
        let before: (usize, usize) = (0..round).fold((0, 0), |sum, round| {
            let lengths = plan.lengths(self.idx, round);
            (sum.0 + lengths.0, sum.1 + lengths.1)
        });
        if self.requested > before.0 {
            return None;
        }
        let (request, response) = plan.lengths(self.idx, round);
        let pattern = plan.pattern(self.idx);
        let place = [pattern, self.requested as u64, self.answered as u64];
        let mut bytes = header([place[0], place[1], place[2], request as u64, response as u64]);
        bytes.extend(request_bytes(pattern, self.requested, request));
        self.response = response_bytes(pattern, self.answered, response);
        self.got = 0;
        self.requested += request;
        self.answered += response;
        Some(bytes)
    }

    fn receive_all(&mut self) {
        while self.waits() {
            self.receive(0);
        }
    }

    /// One receive, checked; false if there is nothing now.
    fn receive(&mut self, flags: i32) -> bool {
        let mut buffer = [0; 8192];
        match recv(self.fd, &mut buffer, flags) {
            Ok(0) => panic!("end of stream at {} of {} bytes", self.got, self.response.len()),
            Ok(count) => {
                let end = self.got + count;
                assert!(end <= self.response.len(), "more bytes than were sent");
                assert_bytes(&buffer[..count], &self.response[self.got..end]);
                self.got = end;
                true
            }
            Err(AGAIN) => false,
            Err(INTR) => true,
            Err(error) => panic!("recv: {error:?}"),
        }
    }
}

/// Events between two rounds.
impl Client {
    fn event(&mut self, idx: usize, round: usize, first: usize) {
        match self.plan.event(idx, round) {
            Event::Nothing => {}
            Event::Pause => pause_ms(1 + round as u64 % 4),
            Event::System => {
                inherit(self.links[idx].fd, true);
                // SAFETY: a C string.
                assert_eq!(unsafe { libc::system(c_string("true").as_ptr()) }, 0);
                inherit(self.links[idx].fd, false);
            }
            Event::Fork => self.fork_round(idx, round),
            Event::Foreign => self.foreign_round(idx, round),
            Event::Turns => self.round_by_turns(idx, round),
            Event::Instruction => self.round_by_instruction(idx, round),
            Event::Duplicate => {
                let fresh = fcntl(self.links[idx].fd, libc::F_DUPFD_CLOEXEC, 3).unwrap();
                self.replace(idx, fresh);
            }
            Event::Pass => {
                let over = socketpair(libc::AF_UNIX, libc::SOCK_STREAM).unwrap();
                send_descriptor(over[0], self.links[idx].fd);
                let fresh = receive_descriptor(over[1]);
                over.into_iter().for_each(|end| close(end).unwrap());
                self.replace(idx, fresh);
            }
            Event::Exec if idx == 0 && round != first && first == 0 => self.exec(round),
            Event::Exec => {}
        }
    }

    fn replace(&mut self, idx: usize, fresh: Fd) {
        let old = self.links[idx].fd;
        epoll_ctl(self.set, libc::EPOLL_CTL_DEL, old, 0, 0).unwrap();
        close(old).unwrap();
        self.links[idx].fd = fresh;
        self.register(&self.links[idx]);
    }

    fn fork_round(&mut self, idx: usize, round: usize) {
        let link = &mut self.links[idx];
        let request = link.begin(&self.plan, round).expect("a round that was not made");
        let child = spawn(|| {
            send_all(link.fd, &request);
            link.receive_all();
        });
        child.join();
        link.got = link.response.len();
    }

    /// Two senders send the parts of one request by turns: what one has sent comes before what the
    /// other one sends next.
    fn round_by_turns(&mut self, idx: usize, round: usize) {
        let link = &mut self.links[idx];
        let request = link.begin(&self.plan, round).expect("a round that was not made");
        let (fd, turns) = (link.fd, [pipe(), pipe()]);
        let parts: Vec<&[u8]> = request.chunks(request.len().div_ceil(TURNS)).collect();
        let send_turns = |own: usize| {
            for (turn, part) in parts.iter().enumerate().filter(|(turn, _)| turn % 2 == own) {
                if turn > 0 {
                    assert_eq!(read(turns[own][0], &mut [0]), Ok(1), "the other one's turn");
                }
                send_all(fd, part);
                write(turns[1 - own][1], b"t").unwrap();
            }
        };
        if round.is_multiple_of(2) {
            let child = spawn(|| send_turns(1));
            send_turns(0);
            child.join();
        } else {
            thread::scope(|scope| {
                scope.spawn(|| send_turns(1));
                send_turns(0);
            });
        }
        turns.into_iter().flatten().for_each(|end| close(end).unwrap());
        link.receive_all();
    }

    fn round_by_instruction(&mut self, idx: usize, round: usize) {
        let link = &mut self.links[idx];
        let request = link.begin(&self.plan, round).expect("a round that was not made");
        send_by_instruction(link.fd, &request);
        link.receive_all();
        link.is_sent_past = true;
    }

    /// A program without the library inherits the connection and makes the next round.
    fn foreign_round(&mut self, idx: usize, round: usize) {
        let link = &mut self.links[idx];
        inherit(link.fd, true);
        let mut command = another(FOREIGN_CLIENT, Side::Kernel);
        let values = [(ROUND, round as u64), (SEED, self.plan.seed), (PORT, idx as u64)];
        command.envs(values.map(|(name, value)| (name, value.to_string())));
        command.env(DESCRIPTORS, link.fd.to_string()).stdin(Stdio::null());
        assert!(command.status().unwrap().success(), "a program without the library");
        inherit(link.fd, false);
        link.begin(&self.plan, round).expect("a round that was not made");
        link.got = link.response.len();
    }

    /// The client continues as another execution of its program.
    fn exec(&mut self, round: usize) {
        let mut list = String::new();
        for link in &self.links {
            inherit(link.fd, true);
            list += &format!("{} ", link.fd);
        }
        let mut command = Command::new("/proc/self/exe");
        command.env(DESCRIPTORS, list).env(ROUND, round.to_string());
        let error = std::os::unix::process::CommandExt::exec(&mut command);
        panic!("exec: {error}");
    }
}

fn inherit(fd: Fd, on: bool) {
    fcntl(fd, libc::F_SETFD, if on { 0 } else { libc::FD_CLOEXEC }).unwrap();
}

/// The program of the child without the library: one round on one connection.
pub(super) fn run_foreign() {
    let plan = Plan::of(number(SEED));
    let (round, idx) = (number(ROUND) as usize, number(PORT) as usize);
    let fd: Fd = std::env::var(DESCRIPTORS).unwrap().trim().parse().unwrap();
    let (mut requested, mut answered) = (0, 0);
    for earlier in 0..round {
        let lengths = plan.lengths(idx, earlier);
        requested += lengths.0;
        answered += lengths.1;
    }
    let mut link = Link::new(fd, idx, [requested, answered]);
    let request = link.begin(&plan, round).expect("a round that was not made");
    send_all(fd, &request);
    link.receive_all();
}
