//! A program that defines functions of libc itself, each by libc's second name, as the Erlang
//! runtime does with `sigaction`. The test compiles it by rustc alone: it has no dependencies.
//!
//! Each definition fails the program if it is entered again while it runs: then the second name has
//! led back to it.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::abort;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Counts the calls of definitions that are active in this thread.
struct Inside;

fn enter(name: &str) -> Inside {
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    if depth > 0 {
        DEPTH.set(0);
        println!("{name} was called from inside the program's own definition");
        abort();
    }
    Inside
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Declares definitions under libc's first name that call libc's second name.
macro_rules! own {
    ($($first:ident = $second:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        unsafe extern "C" {
            $(fn $second($($argument: $kind),*) -> $result;)*
        }
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $first($($argument: $kind),*) -> $result {
                let _inside = enter(stringify!($first));
                // SAFETY: libc's own arguments, passed on unchanged.
                unsafe { $second($($argument),*) }
            }
        )*
    };
}

own! {
    sigaction = __sigaction(signal: c_int, new: *const c_void, old: *mut c_void) -> c_int;
    sysv_signal = __sysv_signal(signal: c_int, handler: usize) -> usize;
    close = __close(fd: c_int) -> c_int;
    dup2 = __dup2(old: c_int, new: c_int) -> c_int;
    fcntl = __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    read = __read(fd: c_int, buffer: *mut c_void, bytes: usize) -> isize;
    write = __write(fd: c_int, buffer: *const c_void, bytes: usize) -> isize;
    send = __send(fd: c_int, buffer: *const c_void, bytes: usize, flags: c_int) -> isize;
    connect = __connect(fd: c_int, address: *const c_void, length: u32) -> c_int;
    poll = __poll(fds: *mut c_void, count: usize, timeout_ms: c_int) -> c_int;
    select = __select(count: c_int, readable: *mut c_void, writable: *mut c_void,
        except: *mut c_void, time: *mut c_void) -> c_int;
    fork = __fork() -> c_int;
    popen = _IO_popen(command: *const c_char, mode: *const c_char) -> *mut c_void;
}

unsafe extern "C" {
    fn pclose(file: *mut c_void) -> c_int;
    fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
    fn pipe(ends: *mut c_int) -> c_int;
}

/// Every definition once, by the program's own calls.
fn call_each() {
    const USR1: c_int = 10;
    let mut ends = [-1; 2];
    let mut action = [0_u64; 32];
    let mut time = [0_i64; 2];
    // SAFETY: the buffers are live and at least as large as the structures; the descriptors are
    // this function's own; the child only ends.
    unsafe {
        assert_eq!(sigaction(USR1, std::ptr::null(), action.as_mut_ptr().cast()), 0);
        assert_eq!(sysv_signal(USR1, 1), 0);
        assert_eq!(sysv_signal(USR1, 0), 1);
        assert_eq!(pipe(ends.as_mut_ptr()), 0);
        let copy = fcntl(ends[0], 0, 50);
        assert!(copy >= 50);
        assert_eq!(dup2(ends[1], copy), copy);
        assert_eq!(write(copy, c"ab".as_ptr().cast(), 2), 2);
        assert_eq!(poll(std::ptr::null_mut(), 0, 0), 0);
        let none = std::ptr::null_mut();
        assert_eq!(select(0, none, none, none, time.as_mut_ptr().cast()), 0);
        let mut two = [0_u8; 2];
        assert_eq!(read(ends[0], two.as_mut_ptr().cast(), 2), 2);
        assert_eq!(&two, b"ab");
        for fd in [ends[0], ends[1], copy] {
            assert_eq!(close(fd), 0);
        }
        let child = fork();
        if child == 0 {
            _exit(7);
        }
        let mut status = 0;
        assert_eq!((waitpid(child, &raw mut status, 0), status), (child, 7 << 8));
        let command: &CStr = c"exit 3";
        assert_eq!(pclose(popen(command.as_ptr(), c"r".as_ptr())), 3 << 8);
    }
}

/// A connection to itself that carries a few messages.
fn exchange() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for round in 0..50_u8 {
        let mut got = [0; 9];
        client.write_all(&[round; 9]).unwrap();
        server.read_exact(&mut got).unwrap();
        assert_eq!(got, [round; 9]);
        server.write_all(&got).unwrap();
        client.read_exact(&mut got).unwrap();
    }
}

fn main() {
    call_each();
    exchange();
    println!("complete");
}
