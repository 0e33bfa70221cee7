//! Parts of a program that send without this library, on a connection that another part uses
//! through it. Their bytes arrive in the order in which they were sent.

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::process::Command;

use libc::{RTLD_LOCAL, RTLD_NOW};

use crate::calls::*;
use crate::harness::{c_string, state};
use crate::support::joined_without_delay as joined_pair;
use crate::support::*;

behaviours![
    order_beside_the_c_librarys_own_send,
    order_beside_a_plug_in_that_is_bound_deeply,
    order_beside_a_call_found_after_this_librarys,
    order_beside_system_calls_by_instruction_from_the_start,
    order_beside_system_calls_by_instruction_is_soon_kept,
    order_beside_system_calls_by_instruction_is_kept_after_a_program_was_started,
    order_beside_a_child_that_writes_by_instruction_is_soon_kept,
    order_beside_a_thread_that_writes_by_instruction_is_soon_kept,
    order_beside_a_child_that_calls_the_c_librarys_own_write,
    order_beside_a_thread_that_calls_the_c_librarys_own_write,
    order_beside_a_child_that_calls_a_plug_in,
    order_beside_a_thread_that_calls_a_plug_in,
];

/// A way to write that this library may not see.
type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;

/// Messages of a test, a number of eight bytes each.
const MESSAGES: u64 = 2000;

/// Sends the numbers from `numbers` by turns through `send` and past it, in pauses of the receiver
/// and without them; returns how many arrived after a later one.
#[track_caller]
fn late_messages(pair: Pair, past: Write, numbers: std::ops::Range<u64>) -> usize {
    let count = (numbers.end - numbers.start) as usize;
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| recv_exact(pair.server, 8 * count));
        for number in numbers {
            let bytes = number.to_le_bytes();
            if number % 3 == 1 {
                // SAFETY: the bytes are live.
                assert_eq!(unsafe { past(pair.client, bytes.as_ptr().cast(), 8) }, 8);
            } else {
                send_all(pair.client, &bytes);
            }
            if number % 64 == 0 {
                pause_ms(1);
            }
        }
        receiver.join().unwrap()
    });
    late_of(&received)
}

/// How many of the numbers do not follow the one before.
fn late_of(bytes: &[u8]) -> usize {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let numbers: Vec<u64> = bytes.chunks_exact(8).map(number).collect();
    numbers.windows(2).filter(|two| two[1] != two[0] + 1).count()
}

/// Messages of both parts arrive in order, before the connection has joined and after it.
#[track_caller]
fn check_order(past: Write) {
    assert_eq!(late_messages(unused_pair(), past, 0..MESSAGES), 0, "from the start");
    assert_eq!(late_messages(joined_pair(), past, 0..MESSAGES), 0, "of a joined connection");
}

/// A function of a library that is opened with `flags`.
#[track_caller]
fn function(library: &str, flags: c_int, name: &str) -> Write {
    let (library, name) = (c_string(library), c_string(name));
    // SAFETY: the names are C strings; the function has this type.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), flags);
        assert!(!handle.is_null(), "{library:?} cannot be opened");
        let found = libc::dlsym(handle, name.as_ptr());
        std::mem::transmute::<*mut c_void, Option<Write>>(found).expect("a function")
    }
}

/// As Python's ctypes finds it.
fn order_beside_the_c_librarys_own_send() {
    check_order(function("libc.so.6", RTLD_NOW | RTLD_LOCAL, "write"));
}

/// As programs with wrappers of their own find it.
fn order_beside_a_call_found_after_this_librarys() {
    // SAFETY: a C string; the function has this type.
    let found = unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"write".as_ptr());
        std::mem::transmute::<*mut c_void, Option<Write>>(found)
    };
    check_order(found.expect("a function"));
}

/// The function by which a plug-in writes that is bound deeply.
#[track_caller]
fn plug_in_write(folder: &tempfile::TempDir) -> Write {
    let plug_in = folder.path().join("plug_in.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/past/plug_in.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-o"]);
    let output = command.arg(&plug_in).arg(source).env_remove("LD_PRELOAD").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_DEEPBIND;
    function(plug_in.to_str().unwrap(), flags, "plug_in_write")
}

fn order_beside_a_plug_in_that_is_bound_deeply() {
    check_order(plug_in_write(&tempfile::tempdir().unwrap()));
}

/// Writes by an instruction of its own.
pub(crate) unsafe extern "C" fn write_by_instruction(
    fd: c_int,
    bytes: *const c_void,
    count: usize,
) -> isize {
    let result: isize;
    // SAFETY: the caller guarantees the bytes; the call changes no memory of this process.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") libc::SYS_write as isize => result,
            in("rdi") fd as isize, in("rsi") bytes, in("rdx") count,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    // SAFETY: the caller guarantees the bytes; the call changes no memory of this process.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("svc 0", in("x8") libc::SYS_write, inlateout("x0") fd as isize => result,
            in("x1") bytes, in("x2") count, options(nostack));
    }
    result
}

/// A program that has sent so before the ends meet stays on the kernel.
fn order_beside_system_calls_by_instruction_from_the_start() {
    assert_eq!(late_messages(unused_pair(), write_by_instruction, 0..MESSAGES), 0);
}

/// Nothing shows a call by instruction before it is made. The first one may be overtaken, until the
/// library looks; from then on the connection stays on the kernel.
fn order_beside_system_calls_by_instruction_is_soon_kept() {
    let pair = joined_pair();
    let late = late_messages(pair, write_by_instruction, 0..MESSAGES);
    assert!(late <= 128, "{late} of {MESSAGES} messages were late");
    if state(pair.client).is_some() {
        assert_state(pair.client, KERNEL);
    }
    assert_eq!(late_messages(pair, write_by_instruction, 0..MESSAGES), 0, "the kernel keeps order");
}

/// The peer has received what was sent past the library. A program that inherits the connection
/// and ends does not hide it.
fn order_beside_system_calls_by_instruction_is_kept_after_a_program_was_started() {
    let pair = joined_pair();
    let past = b"past the library";
    // SAFETY: the bytes are live.
    let sent = unsafe { write_by_instruction(pair.client, past.as_ptr().cast(), past.len()) };
    assert_eq!(sent, past.len() as isize);
    assert_eq!(recv_exact(pair.server, past.len()), past);
    fcntl(pair.client, libc::F_SETFD, 0).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::system(c_string("true").as_ptr()) }, 0);
    fcntl(pair.client, libc::F_SETFD, libc::FD_CLOEXEC).unwrap();
    assert_eq!(late_messages(pair, write_by_instruction, 0..MESSAGES), 0);
}

/// A forked child writes by turns with its parent; returns how many messages were late in the first
/// half, and in the second.
#[track_caller]
fn late_messages_of_child(past: Write) -> [usize; 2] {
    let pair = joined_pair();
    let [there, here] = [pipe(), pipe()];
    let child = spawn(|| write_numbers(pair.client, past, there[0], here[1]));
    let late = late_messages_by_turns(pair, there[1], here[0]);
    child.join();
    late
}

/// As [`late_messages_of_child`], with a thread.
#[track_caller]
fn late_messages_of_thread(past: Write) -> [usize; 2] {
    let pair = joined_pair();
    let [there, here] = [pipe(), pipe()];
    std::thread::scope(|scope| {
        scope.spawn(|| write_numbers(pair.client, past, there[0], here[1]));
        late_messages_by_turns(pair, there[1], here[0])
    })
}

/// Writes the numbers that come by `turns`, and says so by `done`.
fn write_numbers(fd: Fd, past: Write, turns: Fd, done: Fd) {
    let mut number = [0; 8];
    while read(turns, &mut number) == Ok(8) && number != [0xff; 8] {
        // SAFETY: the bytes are live.
        assert_eq!(unsafe { past(fd, number.as_ptr().cast(), 8) }, 8);
        write(done, b"d").unwrap();
    }
}

fn late_messages_by_turns(pair: Pair, turns: Fd, done: Fd) -> [usize; 2] {
    let late = [0..MESSAGES / 8, MESSAGES / 8..MESSAGES / 4].map(|numbers| {
        let count = (numbers.end - numbers.start) as usize;
        for number in numbers {
            if number % 2 == 1 {
                write(turns, &number.to_le_bytes()).unwrap();
                read(done, &mut [0]).unwrap();
            } else {
                send_all(pair.client, &number.to_le_bytes());
            }
        }
        late_of(&recv_exact(pair.server, 8 * count))
    });
    write(turns, &[0xff; 8]).unwrap();
    late
}

/// The parent's library notices it soon.
fn order_beside_a_child_that_writes_by_instruction_is_soon_kept() {
    let late = late_messages_of_child(write_by_instruction);
    assert!(late[0] <= 64 && late[1] == 0, "{late:?} of {MESSAGES} messages were late");
}

fn order_beside_a_thread_that_writes_by_instruction_is_soon_kept() {
    let late = late_messages_of_thread(write_by_instruction);
    assert!(late[0] <= 64 && late[1] == 0, "{late:?} of {MESSAGES} messages were late");
}

fn order_beside_a_child_that_calls_the_c_librarys_own_write() {
    let past = function("libc.so.6", RTLD_NOW | RTLD_LOCAL, "write");
    assert_eq!(late_messages_of_child(past), [0, 0]);
}

fn order_beside_a_thread_that_calls_the_c_librarys_own_write() {
    let past = function("libc.so.6", RTLD_NOW | RTLD_LOCAL, "write");
    assert_eq!(late_messages_of_thread(past), [0, 0]);
}

fn order_beside_a_child_that_calls_a_plug_in() {
    let past = plug_in_write(&tempfile::tempdir().unwrap());
    assert_eq!(late_messages_of_child(past), [0, 0]);
}

fn order_beside_a_thread_that_calls_a_plug_in() {
    let past = plug_in_write(&tempfile::tempdir().unwrap());
    assert_eq!(late_messages_of_thread(past), [0, 0]);
}
