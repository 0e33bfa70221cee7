//! What the processes of a soak do, all from numbers of one seed.

use crate::support::pattern_at;

/// A generator of numbers (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Numbers(pub u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// How a program waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    Blocking,
    Poll,
    Select,
    EpollLevel,
    EpollEdge,
    EpollOneShot,
    /// A server: a process for each connection. A client: a thread that sends, one that receives.
    Split,
}

pub(crate) const WAYS: [Waiting; 7] = [
    Waiting::Blocking,
    Waiting::Poll,
    Waiting::Select,
    Waiting::EpollLevel,
    Waiting::EpollEdge,
    Waiting::EpollOneShot,
    Waiting::Split,
];

/// What a client does with one of its connections between two rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Nothing,
    Pause,
    /// `system()`: a child inherits the connection and leaves it alone.
    System,
    /// A forked child makes the next round.
    Fork,
    /// A program without the library makes the next round.
    Foreign,
    /// Two processes, or two threads, send the parts of the next request by turns.
    Turns,
    /// The next request is sent by system calls past the library, and parts of all later ones.
    Instruction,
    /// The descriptor is duplicated, and the first one closed.
    Duplicate,
    /// The descriptor is passed over a Unix socket.
    Pass,
    /// The client executes itself and continues.
    Exec,
}

/// How often each event happens among a thousand; nothing happens otherwise.
const EVENTS: [(Event, u64); 9] = [
    (Event::Pause, 60),
    (Event::System, 12),
    (Event::Fork, 15),
    (Event::Foreign, 8),
    (Event::Turns, 30),
    (Event::Instruction, 3),
    (Event::Duplicate, 15),
    (Event::Pass, 3),
    (Event::Exec, 5),
];

/// How a client ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Regular,
    /// It kills itself in the middle of its last round.
    Killed,
}

/// A limit under which a client runs: lower ones than the library would like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    None,
    /// Of the size of files: less than a connection's memory.
    FileSize,
    /// Of descriptors: the library's own must have numbers below it too.
    Descriptors,
    LockedMemory,
    /// Of the address space: there is not enough for each connection's memory.
    Memory,
}

const LIMITS: [Limit; 8] = [
    Limit::None,
    Limit::None,
    Limit::None,
    Limit::None,
    Limit::FileSize,
    Limit::Descriptors,
    Limit::LockedMemory,
    Limit::Memory,
];

/// What one client process does.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) waiting: Waiting,
    pub(crate) connections: usize,
    pub(crate) rounds: usize,
    pub(crate) end: End,
    pub(crate) limit: Limit,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let mut numbers = Numbers(seed);
        Plan {
            seed,
            waiting: numbers.one_of(&WAYS),
            connections: 1 + numbers.below(8) as usize,
            rounds: 10 + numbers.below(60) as usize,
            end: if numbers.below(8) == 0 { End::Killed } else { End::Regular },
            limit: numbers.one_of(&LIMITS),
        }
    }

    fn numbers(&self, connection: usize, round: usize) -> Numbers {
        let place = (connection as u64) << 32 | round as u64;
        Numbers(self.seed ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// The pattern of one connection.
    pub(crate) fn pattern(&self, connection: usize) -> u64 {
        (self.seed ^ connection as u64) & 0xff_ffff
    }

    /// Lengths of the request and of the response of one round.
    pub(crate) fn lengths(&self, connection: usize, round: usize) -> (usize, usize) {
        let mut numbers = self.numbers(connection, round);
        let mut length = || match numbers.below(40) {
            0 => 1 + numbers.below(600_000) as usize,
            1..=4 => 1 + numbers.below(20_000) as usize,
            _ => 1 + numbers.below(200) as usize,
        };
        (length(), length())
    }

    pub(crate) fn event(&self, connection: usize, round: usize) -> Event {
        let mut numbers = self.numbers(connection, round);
        numbers.0 = numbers.0.rotate_left(17);
        let mut number = numbers.below(1000);
        for (event, share) in EVENTS {
            match number.checked_sub(share) {
                Some(rest) => number = rest,
                None => return event,
            }
        }
        Event::Nothing
    }
}

/// Bytes before each request: pattern, its offset in the request direction, in the response
/// direction, length of the request, and of the response.
pub(crate) const HEADER: usize = 40;

pub(crate) fn header(words: [u64; 5]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn words(header: &[u8]) -> [u64; 5] {
    std::array::from_fn(|idx| {
        u64::from_le_bytes(header[8 * idx..8 * idx + 8].try_into().expect("eight bytes"))
    })
}

/// Pattern of the requests, and another one of the responses.
pub(crate) fn request_bytes(pattern: u64, offset: usize, length: usize) -> Vec<u8> {
    pattern_at(pattern, offset, length)
}

pub(crate) fn response_bytes(pattern: u64, offset: usize, length: usize) -> Vec<u8> {
    pattern_at(pattern ^ 0x55_5555, offset, length)
}
