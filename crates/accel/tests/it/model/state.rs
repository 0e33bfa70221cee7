//! The state of the model. It is one direction of a connection in shared memory and in the kernel,
//! and two epoll sets. It has the sending thread, and the threads of the receiving end.

/// Bytes in flight at most: in the pipe, in the kernel, and being sent again.
const BYTES: usize = 8;
pub(super) const RECEIVERS: usize = 3;
pub(super) const SETS: usize = 2;

/// What one thread of the receiving end does, over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Program {
    Absent,
    /// Blocking receives.
    Blocking,
    /// `poll` or `select` without a time limit, then one receive, or all up to EAGAIN.
    Poll {
        drain: bool,
    },
    /// Asks by `poll` with time limit 0 and receives without blocking; then like `Poll`.
    PollAtOnce,
    /// `epoll_wait`, then one receive, or all up to EAGAIN; `rearm` ends each turn by MOD.
    Epoll {
        drain: bool,
        rearm: bool,
    },
    /// `epoll_ctl` operations at any moments.
    Control(&'static [Operation]),
    /// A thread of the sending end that goes to sleep at any moments: before it does, it takes back
    /// what the sender has left in the pipe.
    Fellow,
    /// Learns `kernel_received` at any moment, as the rendezvous does.
    Join,
    /// Hands the socket to a child without the library, which receives by the kernel alone; then
    /// takes it back.
    HandOver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Add,
    Modify,
    Delete,
}

/// Where a thread of the receiving end is: before which step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum At {
    /// Between two calls.
    Turn,
    /// After a call.
    Returned,
    // A receive.
    ReadPipe,
    SkipTakingBack,
    SkipKernel,
    TakeFromPipe,
    CountReceive,
    ReadTakeBacks,
    CheckPipeCounted,
    UncountAndRetry,
    KernelReceive,
    ReadKnown,
    AddReceived,
    UncountGot,
    LookWhetherEmpty,
    SettleEmpty,
    CheckTakeBacks,
    UncountEmpty,
    // A poll.
    PollPipe,
    PollTakeBacks,
    PollKernelAtOnce,
    PollCheckTakeBacks,
    PollCount,
    PollPipeCounted,
    PollKernel,
    PollUncount,
    // epoll_wait.
    WaitLock,
    WaitActivate,
    WaitPipe,
    WaitKernelAtOnce,
    WaitCount,
    WaitPipeCounted,
    WaitUnlock,
    WaitKernel,
    WaitRelock,
    WaitDisarm,
    WaitReport,
    // epoll_ctl.
    ControlLock,
    ControlKernel,
    ControlCount,
    ControlPipe,
    ControlUnlock,
    // Learning kernel_received.
    LearnNobodyInside,
    LearnBytes,
    LearnUnread,
    LearnAgain,
    LearnStillNobody,
    LearnPublish,
    LearnVerify,
    LearnRevert,
    // A thread of the sending end.
    FellowLock,
    FellowCount,
    FellowAnnounce,
    FellowCheck,
    FellowTakeBack,
    FellowResend,
    FellowSent,
    FellowEnd,
    // A child without the library.
    HoldCount,
    HoldForget,
    ChildReceive,
    HoldEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Outcome {
    None,
    Got,
    Empty,
    Ready,
    NotReady,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Receiver {
    pub(super) at: At,
    pub(super) outcome: Outcome,
    pub(super) blocking: bool,
    /// What the steps of a call remember.
    pub(super) a: u8,
    pub(super) b: u8,
    /// Bytes were being taken back since the call last looked.
    pub(super) moved: bool,
    /// The event that it took from the kernel is outdated.
    pub(super) stale: bool,
    /// When the call began, bytes were unread whose send had returned, and nobody received since.
    pub(super) promised: bool,
    /// It was notified that the socket is readable, and nobody received since.
    pub(super) notified: bool,
    /// Operations of `Control` done.
    pub(super) done: u8,
}

/// Where the sender is: before which step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SendAt {
    Idle,
    Asleep,
    CheckUsers,
    CheckReceived,
    Push,
    Recheck,
    BeforeKernel,
    BeginTakeBack,
    ReadHead,
    TakeBack,
    Resend,
    CountResent,
    EndTakeBack,
    CountSender,
    LookForTakeBack,
    WaitForTakeBack,
    KernelSend,
    CountSent,
    UncountSender,
    BeforeSleep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Sender {
    pub(super) at: SendAt,
    pub(super) calls: u8,
    /// Bytes that the call has yet to send.
    pub(super) left: u8,
    /// The call has written to the pipe, at this position first.
    pub(super) has_pushed: bool,
    pub(super) tail_before: u8,
    /// Pipe positions that were taken back and are to be sent again.
    pub(super) from: u8,
    pub(super) to: u8,
    /// Bytes that the last kernel call accepted.
    pub(super) accepted: u8,
    /// It takes back because it is about to sleep.
    pub(super) sleeps: bool,
    pub(super) next_byte: u8,
    pub(super) kernel_sent: u8,
    /// Bytes whose call has returned.
    pub(super) returned: u8,
}

/// The shared memory of the direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shared {
    pub(super) pipe: [u8; BYTES],
    pub(super) head: u8,
    pub(super) tail: u8,
    pub(super) users: i8,
    /// Calls of the sending end that send by the kernel, and take backs.
    pub(super) senders: u8,
    /// A thread of the sending end other than the sender holds the send lock.
    pub(super) fellow_locks: bool,
    /// Threads inside a kernel receive; with `users` in one word.
    pub(super) inside: u8,
    /// Bytes received from the kernel; `known` is false while that is not known.
    pub(super) received: u8,
    pub(super) known: bool,
    /// `kernel_sent` as the sender published it.
    pub(super) published_sent: u8,
    /// Bytes are being taken back: they are neither in the pipe nor in the kernel.
    pub(super) taking_back: bool,
}

/// The kernel's queue: `log[read..sent]` is unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kernel {
    pub(super) log: [u8; BYTES],
    pub(super) sent: u8,
    pub(super) read: u8,
}

/// An epoll set with one member: what the kernel holds (`kernel_*`), and what the library holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Set {
    pub(super) kernel_present: bool,
    pub(super) kernel_armed: bool,
    /// The member is in the kernel's list of those that may be ready.
    pub(super) kernel_listed: bool,
    /// The temporary descriptor that wakes a sleeper.
    pub(super) wake: bool,
    /// 0, or the number of the thread that holds the lock, from 1.
    pub(super) lock: u8,
    pub(super) present: bool,
    pub(super) armed: bool,
    pub(super) counted: bool,
    /// Tail of the pipe that the last edge reported.
    pub(super) reported: u8,
    pub(super) sleepers: u8,
    /// Bytes arrived that no edge has reported.
    pub(super) arrived: bool,
    /// Armings by the program that were not reported yet.
    pub(super) arms: i8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) shared: Shared,
    pub(super) kernel: Kernel,
    pub(super) sender: Sender,
    pub(super) sets: [Set; SETS],
    pub(super) receivers: [Receiver; RECEIVERS],
    /// A wait has reported something of the kernel since a receive asked it.
    pub(super) kernel_reported: bool,
    /// The kernel had bytes when a receive asked it last.
    pub(super) kernel_had_bytes: bool,
    pub(super) delivered: u8,
    pub(super) wrong: Option<&'static str>,
}

/// A rule that a test leaves out, to see that the checker finds what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    NoRecheckAfterPublish,
    NoCountBeforeSleep,
    NoCheckAfterCount,
    ReceivedCountedAfterUncount,
    ReceivedNotChecked,
    TakeBackOwnBytesOnly,
    TakeBackBehindKernel,
    TakeBacksNotWatched,
    NoWakeAfterControl,
    NoWakeOfNextSleeper,
    ActiveBesideSleepers,
    OneshotNotDisarmed,
    StaleEventsReported,
    LearnBesideReceivers,
    LearnUnreadFirst,
    LearnWithoutVerifying,
    KernelNotAsked,
    KernelNotAskedAgain,
    SettledAlthoughReported,
    NoTakeBackBeforeSleep,
    TakeBackWithoutExchange,
    TakeBackBesideSender,
}

#[derive(Debug, Clone)]
pub(super) struct Config {
    /// Bytes that the pipe holds, and as many the kernel, unread.
    pub(super) room: u8,
    /// Lengths of a send, of which the program chooses.
    pub(super) lengths: &'static [u8],
    /// Sends at most; without a limit the model is about streams of any length.
    pub(super) calls_max: Option<u8>,
    pub(super) programs: [Program; RECEIVERS],
    /// The set that each thread uses.
    pub(super) set_of: [usize; RECEIVERS],
    /// Both ends know that they share memory from the start.
    pub(super) joined: bool,
    pub(super) edge: bool,
    pub(super) oneshot: bool,
    pub(super) exclusive: bool,
    /// Sets whose member is registered from the start.
    pub(super) registered: [bool; SETS],
    /// The sender may sleep in a call that the library sees.
    pub(super) sleeps: bool,
    pub(super) fault: Option<Fault>,
}

impl Config {
    pub(super) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

impl Sender {
    /// The send lock is held by the sender.
    pub(super) fn holds_lock(&self) -> bool {
        use SendAt::*;
        matches!(self.at, Push | Recheck | BeginTakeBack | ReadHead | TakeBack)
            || matches!(self.at, Resend | CountResent | EndTakeBack)
    }
}

impl Receiver {
    /// Clears what no step reads any more.
    fn forget(&mut self) {
        use At::*;
        let epoll = matches!(self.at, WaitKernel | WaitRelock | WaitReport | WaitDisarm);
        if !epoll {
            self.stale = false;
        }
        let fellow = matches!(self.at, FellowTakeBack | FellowResend | FellowSent);
        let learns = fellow
            || matches!(self.at, LearnUnread | LearnAgain | LearnBytes | LearnStillNobody)
            || matches!(self.at, LearnPublish | LearnVerify | LearnRevert);
        if !epoll && !learns && self.at != TakeFromPipe {
            self.a = 0;
        }
        if !learns {
            self.b = 0;
        }
        let watches = matches!(self.at, CheckPipeCounted | KernelReceive | CheckTakeBacks)
            || matches!(self.at, PollPipe | PollKernelAtOnce | PollCheckTakeBacks);
        self.moved &= watches;
        if self.at == Turn {
            (self.blocking, self.notified) = (false, false);
        }
        if matches!(self.at, Turn | Returned) {
            self.promised = false;
        }
    }
}

impl State {
    pub(super) fn new(config: &Config) -> Self {
        let set = |present| Set {
            kernel_present: present,
            kernel_armed: present,
            kernel_listed: false,
            wake: false,
            lock: 0,
            present,
            armed: present,
            counted: false,
            reported: 0,
            sleepers: 0,
            arrived: false,
            arms: i8::from(present),
        };
        let receiver = |_| Receiver {
            at: At::Turn,
            outcome: Outcome::None,
            blocking: false,
            a: 0,
            b: 0,
            moved: false,
            stale: false,
            promised: false,
            notified: false,
            done: 0,
        };
        Self {
            shared: Shared {
                pipe: [0; BYTES],
                head: 0,
                tail: 0,
                users: 0,
                senders: 0,
                fellow_locks: false,
                inside: 0,
                received: 0,
                known: config.joined,
                published_sent: 0,
                taking_back: false,
            },
            kernel: Kernel { log: [0; BYTES], sent: 0, read: 0 },
            sender: Sender {
                at: SendAt::Idle,
                calls: 0,
                left: 0,
                has_pushed: false,
                tail_before: 0,
                from: 0,
                to: 0,
                accepted: 0,
                sleeps: false,
                next_byte: 0,
                kernel_sent: 0,
                returned: 0,
            },
            sets: config.registered.map(set),
            receivers: config.programs.map(receiver),
            kernel_reported: false,
            kernel_had_bytes: true,
            delivered: 0,
            wrong: None,
        }
    }

    /// The same state in its only form: what no step can read any more is zero, and positions count
    /// from the first byte that is not received yet. So a stream of any length has finitely many
    /// states.
    pub(super) fn canonical(mut self, config: &Config) -> Self {
        let sends_again =
            matches!(self.sender.at, SendAt::TakeBack | SendAt::Resend | SendAt::CountResent);
        let fellow_sends_again = |receiver: &Receiver| {
            matches!(receiver.at, At::FellowTakeBack | At::FellowResend | At::FellowSent)
        };
        if !sends_again && !self.receivers.iter().any(fellow_sends_again) {
            self.rebase_pipe();
        }
        self.receivers.iter_mut().for_each(Receiver::forget);
        let learns = |program| matches!(program, Program::Join | Program::HandOver);
        if !config.programs.into_iter().any(learns) {
            self.rebase_kernel();
        }
        if self.wrong.is_none() {
            self.rebase_bytes();
        }
        if config.calls_max.is_none() {
            self.sender.calls = 0;
        }
        self.sort_equal_threads(config);
        self
    }

    /// Two threads that run the same program on the same set can be exchanged.
    fn sort_equal_threads(&mut self, config: &Config) {
        let are_equal =
            config.programs[0] == config.programs[1] && config.set_of[0] == config.set_of[1];
        if are_equal && self.receivers[0] > self.receivers[1] {
            self.receivers.swap(0, 1);
            for set in &mut self.sets {
                set.lock = match set.lock {
                    1 => 2,
                    2 => 1,
                    other => other,
                };
            }
        }
    }

    fn rebase_pipe(&mut self) {
        let (head, tail) = (self.shared.head, self.shared.tail);
        for receiver in &mut self.receivers {
            if receiver.at == At::TakeFromPipe {
                receiver.a = if receiver.a == head { 0 } else { u8::MAX };
            }
        }
        for set in &mut self.sets {
            set.reported = set.reported.saturating_sub(head);
        }
        let sender = &mut self.sender;
        sender.tail_before = sender.tail_before.saturating_sub(head);
        (sender.from, sender.to) = (0, 0);
        let mut pipe = [0; BYTES];
        let unread = &self.shared.pipe[usize::from(head)..usize::from(tail)];
        pipe[..unread.len()].copy_from_slice(unread);
        self.shared.pipe = pipe;
        (self.shared.head, self.shared.tail) = (0, tail - head);
    }

    fn rebase_kernel(&mut self) {
        let (read, sent) = (self.kernel.read, self.kernel.sent);
        let mut log = [0; BYTES];
        let unread = &self.kernel.log[usize::from(read)..usize::from(sent)];
        log[..unread.len()].copy_from_slice(unread);
        self.kernel = Kernel { log, sent: sent - read, read: 0 };
        let counts = [
            &mut self.shared.received,
            &mut self.shared.published_sent,
            &mut self.sender.kernel_sent,
        ];
        let least = counts.iter().map(|count| **count).min().unwrap_or(0);
        counts.into_iter().for_each(|count| *count -= least);
    }

    fn rebase_bytes(&mut self) {
        let delivered = self.delivered;
        let (head, tail) = (usize::from(self.shared.head), usize::from(self.shared.tail));
        let (read, sent) = (usize::from(self.kernel.read), usize::from(self.kernel.sent));
        let again = usize::from(self.sender.from)..usize::from(self.sender.to);
        let first = if again.is_empty() { head } else { again.start };
        self.shared.pipe[first..tail].iter_mut().for_each(|byte| *byte -= delivered);
        self.kernel.log[..read].fill(0);
        self.kernel.log[read..sent].iter_mut().for_each(|byte| *byte -= delivered);
        self.sender.next_byte -= delivered;
        self.sender.returned = self.sender.returned.saturating_sub(delivered);
        self.delivered = 0;
    }

    pub(super) fn pipe_empty(&self) -> bool {
        self.shared.head == self.shared.tail
    }

    pub(super) fn kernel_empty(&self) -> bool {
        self.kernel.sent == self.kernel.read
    }

    /// Bytes that arrived and nobody has received.
    pub(super) fn unread(&self) -> bool {
        self.sender.next_byte > self.delivered
    }

    /// A byte reaches the program: it must be the next one.
    pub(super) fn deliver(&mut self, byte: u8) {
        if byte != self.delivered {
            self.wrong = Some("a byte arrived out of order");
        }
        self.delivered += 1;
        for receiver in &mut self.receivers {
            receiver.notified = false;
            receiver.promised = false;
        }
    }

    /// Bytes arrive by either way.
    pub(super) fn note_arrival(&mut self) {
        for set in &mut self.sets {
            set.arrived = set.present;
        }
    }

    /// The kernel takes over `byte` from the sender.
    pub(super) fn kernel_accept(&mut self, byte: u8) {
        self.kernel.log[usize::from(self.kernel.sent)] = byte;
        self.kernel.sent += 1;
    }

    pub(super) fn kernel_room(&self, config: &Config) -> u8 {
        config.room - (self.kernel.sent - self.kernel.read)
    }

    pub(super) fn kernel_receive(&mut self) {
        let byte = self.kernel.log[usize::from(self.kernel.read)];
        self.kernel.read += 1;
        self.deliver(byte);
    }
}
