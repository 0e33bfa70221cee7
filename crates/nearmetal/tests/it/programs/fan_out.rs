//! Many connections of one program: a server and a client that wait by `select`, `poll`, `epoll` or
//! in blocking threads.
//!
//! ```text
//! fan_out server PORT WAIT
//! fan_out client PORT WAIT CONNECTIONS ROUNDS IDLE_MS
//! ```
//!
//! In a round the client sends 64 bytes on each connection, then receives all answers. After one
//! round and the idle time it counts ROUNDS rounds, and prints round trips/s.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

const BYTES: usize = 64;

const POLLIN: i16 = 1;
const EPOLLIN: u32 = 1;
const EPOLL_CTL_ADD: i32 = 1;
const SET_BITS: usize = 1024;

#[repr(C)]
#[derive(Clone, Copy)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

#[repr(C)]
#[cfg_attr(target_arch = "x86_64", repr(packed))]
#[derive(Clone, Copy)]
struct EpollEvent {
    events: u32,
    data: u64,
}

#[repr(C)]
struct Linger {
    on: i32,
    seconds: i32,
}

unsafe extern "C" {
    fn poll(fds: *mut PollFd, count: u64, timeout_ms: i32) -> i32;
    fn select(
        count: i32,
        read: *mut u64,
        write: *mut u64,
        except: *mut u64,
        timeout: *mut u8,
    ) -> i32;
    fn epoll_create1(flags: i32) -> i32;
    fn epoll_ctl(set: i32, change: i32, fd: i32, event: *mut EpollEvent) -> i32;
    fn epoll_wait(set: i32, events: *mut EpollEvent, count: i32, timeout_ms: i32) -> i32;
    fn setsockopt(fd: i32, level: i32, name: i32, value: *const Linger, bytes: u32) -> i32;
}

/// What a thread waits by, and for.
enum Waiter {
    Select(Vec<RawFd>),
    Poll(Vec<PollFd>),
    Epoll(i32, Vec<EpollEvent>),
}

impl Waiter {
    fn new(name: &str) -> Waiter {
        match name {
            "select" => Waiter::Select(vec![]),
            "poll" => Waiter::Poll(vec![]),
            // SAFETY: no pointers.
            "epoll" => Waiter::Epoll(
                unsafe { epoll_create1(0) },
                vec![EpollEvent { events: 0, data: 0 }; 512],
            ),
            _ => panic!("unknown way to wait: {name}"),
        }
    }

    fn add(&mut self, fd: RawFd) {
        match self {
            Waiter::Select(list) => {
                assert!((fd as usize) < SET_BITS, "too many connections for select");
                list.push(fd);
            }
            Waiter::Poll(list) => list.push(PollFd { fd, events: POLLIN, revents: 0 }),
            Waiter::Epoll(set, _) => {
                let mut event = EpollEvent { events: EPOLLIN, data: fd as u64 };
                // SAFETY: the event is live.
                let result = unsafe { epoll_ctl(*set, EPOLL_CTL_ADD, fd, &raw mut event) };
                assert_eq!(result, 0);
            }
        }
    }

    fn remove(&mut self, fd: RawFd) {
        match self {
            Waiter::Select(list) => list.retain(|one| *one != fd),
            Waiter::Poll(list) => list.retain(|one| one.fd != fd),
            // The kernel forgets it when it is closed.
            Waiter::Epoll(..) => {}
        }
    }

    /// Those that have something to receive.
    fn wait(&mut self) -> Vec<RawFd> {
        match self {
            Waiter::Select(list) => {
                let mut bits = [0_u64; SET_BITS / 64];
                list.iter().for_each(|fd| bits[*fd as usize / 64] |= 1 << (fd % 64));
                let (first, none) = (bits.as_mut_ptr(), std::ptr::null_mut());
                // SAFETY: the set is live and has this many bits.
                let found =
                    unsafe { select(SET_BITS as i32, first, none, none, std::ptr::null_mut()) };
                assert!(found > 0);
                let is_set = |fd: &&RawFd| bits[**fd as usize / 64] >> (**fd % 64) & 1 == 1;
                list.iter().filter(is_set).copied().collect()
            }
            Waiter::Poll(list) => {
                // SAFETY: the array is live.
                let found = unsafe { poll(list.as_mut_ptr(), list.len() as u64, -1) };
                assert!(found > 0);
                list.iter().filter(|one| one.revents != 0).map(|one| one.fd).collect()
            }
            Waiter::Epoll(set, events) => {
                // SAFETY: the array is live.
                let found =
                    unsafe { epoll_wait(*set, events.as_mut_ptr(), events.len() as i32, -1) };
                assert!(found > 0);
                events[..found as usize].iter().map(|event| event.data as RawFd).collect()
            }
        }
    }
}

/// Sends back what arrives, until the end.
fn echo(mut stream: TcpStream) {
    let mut buffer = [0; BYTES];
    while let Ok(1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer).is_err() {
            break;
        }
    }
}

fn serve_by_threads(listener: &TcpListener) {
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        std::thread::Builder::new().stack_size(64 * 1024).spawn(|| echo(stream)).unwrap();
    }
}

fn serve(listener: &TcpListener, way: &str) {
    if way == "threads" {
        return serve_by_threads(listener);
    }
    let mut waiter = Waiter::new(way);
    let mut streams = HashMap::new();
    listener.set_nonblocking(true).unwrap();
    waiter.add(listener.as_raw_fd());
    let mut buffer = [0; BYTES];
    loop {
        for fd in waiter.wait() {
            if fd == listener.as_raw_fd() {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    waiter.add(stream.as_raw_fd());
                    streams.insert(stream.as_raw_fd(), stream);
                }
                continue;
            }
            let stream = streams.get_mut(&fd).unwrap();
            match stream.read(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Ok(count @ 1..) => stream.write_all(&buffer[..count]).unwrap(),
                _ => {
                    waiter.remove(fd);
                    streams.remove(&fd);
                }
            }
        }
    }
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // A reset at the end leaves no port in TIME_WAIT.
    let linger = Linger { on: 1, seconds: 0 };
    let (level, name) = (1, 13);
    // SAFETY: the value is live and of the stated size.
    unsafe { setsockopt(stream.as_raw_fd(), level, name, &raw const linger, 8) };
    stream
}

/// One round over all connections.
fn exchange(streams: &mut [TcpStream], waiter: &mut Option<Waiter>, places: &[usize]) {
    for stream in streams.iter_mut() {
        stream.write_all(&[7; BYTES]).unwrap();
    }
    let mut buffer = [0; BYTES];
    let Some(waiter) = waiter else {
        return streams.iter_mut().for_each(|stream| stream.read_exact(&mut buffer).unwrap());
    };
    let mut left = streams.len();
    while left > 0 {
        for fd in waiter.wait() {
            match streams[places[fd as usize]].read(&mut buffer) {
                Ok(BYTES) => left -= 1,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn run_client(port: u16, way: &str, count: usize, rounds: usize, idle: Duration) {
    let mut streams: Vec<TcpStream> = (0..count).map(|_| connect(port)).collect();
    let mut waiter = (way != "threads").then(|| Waiter::new(way));
    let last = streams.iter().map(AsRawFd::as_raw_fd).max().unwrap();
    let mut places = vec![0; last as usize + 1];
    for (place, stream) in streams.iter().enumerate() {
        places[stream.as_raw_fd() as usize] = place;
        if let Some(waiter) = &mut waiter {
            stream.set_nonblocking(true).unwrap();
            waiter.add(stream.as_raw_fd());
        }
    }
    exchange(&mut streams, &mut waiter, &places);
    std::thread::sleep(idle);
    let begin = Instant::now();
    for _ in 0..rounds {
        exchange(&mut streams, &mut waiter, &places);
    }
    println!("{}", (count * rounds) as f64 / begin.elapsed().as_secs_f64());
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().unwrap();
    match words[..] {
        ["server", port, way] => {
            let listener = TcpListener::bind(("127.0.0.1", port.parse().unwrap())).unwrap();
            serve(&listener, way);
        }
        ["client", port, way, count, rounds, idle_ms] => {
            let idle = Duration::from_millis(number(idle_ms) as u64);
            run_client(port.parse().unwrap(), way, number(count), number(rounds), idle);
        }
        _ => panic!("fan_out server PORT WAIT, or client PORT WAIT CONNECTIONS ROUNDS IDLE_MS"),
    }
}
