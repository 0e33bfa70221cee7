//! Limits of the system, and programs and tools that the library cannot or need not serve: the
//! outcome is that of the plain program.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::calls::*;
use crate::harness::{self, Body, Side, another};
use crate::support::*;

behaviours![
    a_limit_of_file_sizes,
    a_limit_of_file_sizes_from_the_start,
    a_limit_of_memory,
    a_limit_of_descriptors,
    a_limit_of_locked_memory_and_processes,
    all_other_descriptors_are_closed_by_instruction,
    without_proc,
    a_filter_that_refuses_files_in_memory,
];

/// Bodies that other bodies start in programs of their own.
pub(crate) const PEERS: &[Body] = &[
    (concat!(module_path!(), "::exchange_on_new_connections"), exchange_on_new_connections),
    (concat!(module_path!(), "::exchange_of_two_threads"), exchange_of_two_threads),
];

/// Messages on a connection that carried none yet, more than the ends need to meet.
#[track_caller]
pub(crate) fn exchange(pair: Pair) {
    for round in 0..60_u64 {
        for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
            let message = pattern(round, 1 + 7 * round as usize);
            send_all(from, &message);
            assert_bytes(&recv_exact(to, message.len()), &message);
        }
    }
}

/// On connections of each kind, of which the last ones are closed again.
pub(crate) fn exchange_on_new_connections() {
    exchange(unused_pair());
    for _ in 0..3 {
        let pair = unused_pair();
        nonblocking(pair.client, true);
        nonblocking(pair.server, true);
        exchange(pair);
        close(pair.client).unwrap();
        close(pair.server).unwrap();
    }
}

/// Each end in a thread of its own, so that both wait.
pub(crate) fn exchange_of_two_threads() {
    let pair = unused_pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..500 {
                let message = recv_exact(pair.server, 20);
                send_all(pair.server, &message);
            }
        });
        for round in 0..500 {
            send_all(pair.client, &pattern(round, 20));
            assert_bytes(&recv_exact(pair.client, 20), &pattern(round, 20));
        }
    });
}

#[track_caller]
pub(crate) fn limit(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: the limit is live for the call.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// The kernel ends a process by a signal that makes a longer file.
fn a_limit_of_file_sizes() {
    let before = joined_pair();
    limit(libc::RLIMIT_FSIZE, 64 * 1024);
    exchange_on_new_connections();
    exchange(before);
}

/// Starts this program for another body, after `prepare` in its process.
#[track_caller]
pub(crate) fn check_program(body: &str, prepare: impl Fn() + Send + Sync + 'static) {
    let full = PEERS.iter().map(|it| it.0).find(|it| it.ends_with(body)).unwrap();
    let side = if harness::accelerated() { Side::Accelerated } else { Side::Kernel };
    let mut command = another(full, side);
    // SAFETY: the functions make plain system calls only.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, move || {
            prepare();
            Ok(())
        });
    }
    let status = command.status().unwrap();
    assert!(status.success(), "{body}: {status}");
}

fn a_limit_of_file_sizes_from_the_start() {
    check_program("exchange_on_new_connections", || limit(libc::RLIMIT_FSIZE, 4096));
}

/// Too little for the memory of one more connection.
fn a_limit_of_memory() {
    let before = joined_pair();
    let pages: u64 = std::fs::read_to_string("/proc/self/statm")
        .unwrap()
        .split(' ')
        .next()
        .and_then(|it| it.parse().ok())
        .unwrap();
    // What this process allocates itself must fit.
    limit(libc::RLIMIT_AS, pages * 4096 + 256 * 1024);
    exchange_on_new_connections();
    exchange(before);
}

fn a_limit_of_descriptors() {
    let before = joined_pair();
    // Two more pairs; a listener takes the number of the one of the first pair.
    limit(libc::RLIMIT_NOFILE, before.client.max(before.server) as u64 + 1 + 4);
    exchange_on_new_connections();
    exchange(before);
}

fn a_limit_of_locked_memory_and_processes() {
    limit(libc::RLIMIT_MEMLOCK, 0);
    limit(libc::RLIMIT_NPROC, 0);
    exchange_on_new_connections();
}

/// Also those of the library, which it cannot protect against that.
fn all_other_descriptors_are_closed_by_instruction() {
    let before = joined_pair();
    let kept = [before.client.min(before.server), before.client.max(before.server)];
    for [first, last] in [[3, kept[0] - 1], [kept[0] + 1, kept[1] - 1], [kept[1] + 1, c_int::MAX]] {
        if first <= last {
            close_by_instruction(first, last);
        }
    }
    exchange(before);
    exchange_on_new_connections();
}

fn close_by_instruction(first: c_int, last: c_int) {
    let result: isize;
    // SAFETY: the descriptors are this process's; nothing uses them any more.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") libc::SYS_close_range as isize => result,
            in("rdi") first as isize, in("rsi") last as isize, in("rdx") 0,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    // SAFETY: the descriptors are this process's; nothing uses them any more.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("svc 0", in("x8") libc::SYS_close_range,
            inlateout("x0") first as isize => result, in("x1") last as isize, in("x2") 0,
            options(nostack));
    }
    assert_eq!(result, 0);
}

fn without_proc() {
    let before = unused_pair();
    // SAFETY: strings; the mounts are those of a namespace of this process's own.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0, "this test must run as root");
        let (none, root) = (std::ptr::null(), c"/".as_ptr());
        let private = libc::MS_REC | libc::MS_PRIVATE;
        assert_eq!(libc::mount(none, root, none, private, std::ptr::null()), 0);
        assert_eq!(libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH), 0);
    }
    exchange(before);
    exchange_on_new_connections();
}

/// Refuses `memfd_create` with `EPERM`, as some containers do.
fn refuse_files_in_memory() {
    let statement = |code: u32, jumps: [u8; 2], k: u32| libc::sock_filter {
        code: code as u16,
        jt: jumps[0],
        jf: jumps[1],
        k,
    };
    let filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, [0, 0], 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ, [0, 1], libc::SYS_memfd_create as u32),
        statement(libc::BPF_RET, [0, 0], libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET, [0, 0], libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the filter is live for the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

fn a_filter_that_refuses_files_in_memory() {
    check_program("exchange_on_new_connections", refuse_files_in_memory);
}

// Tools, and programs that an accelerated one starts.

#[test]
fn valgrind_runs_an_accelerated_program() {
    for body in ["exchange_on_new_connections", "exchange_of_two_threads"] {
        let full = PEERS.iter().map(|it| it.0).find(|it| it.ends_with(body)).unwrap();
        let peer = another(full, Side::Accelerated);
        let mut command = Command::new("valgrind");
        command.args(["-q", "--sim-hints=no-nptl-pthread-stackcache"]);
        command.arg(std::env::current_exe().unwrap());
        for (name, value) in peer.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = command.output().expect("valgrind is installed");
        assert!(output.status.success(), "{body}: {output:?}");
    }
}

/// Compiles a program of one C file by these words.
fn compile(words: &[&str], into: &Path) -> PathBuf {
    let (source, program) = (into.join("main.c"), into.join("program"));
    std::fs::write(&source, "int main(void) { return 7; }").unwrap();
    let mut command = Command::new(words[0]);
    let output = command.args(&words[1..]).arg("-o").arg(&program).arg(&source).output();
    let output = output.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Every way in which an accelerated shell, and a program, start another one.
#[track_caller]
fn check_starts(program: &Path) {
    let program = program.to_str().unwrap();
    let script = format!(
        "import os, subprocess\n\
         here = lambda *words: os.waitstatus_to_exitcode(os.waitpid(os.fork() or \
         os._exit(run(*words)), 0)[1])\n\
         def run(call, *words):\n    try:\n        getattr(os, call)(*words)\n    \
         except OSError:\n        return 99\n\
         p = {program:?}\n\
         assert subprocess.call([p]) == 7\n\
         assert os.waitstatus_to_exitcode(os.system(p)) == 7\n\
         spawned = os.posix_spawn(p, [p], os.environ)\n\
         assert os.waitstatus_to_exitcode(os.waitpid(spawned, 0)[1]) == 7\n\
         for words in [('execv', p, [p]), ('execve', p, [p], os.environ), ('execvp', p, [p]), \
         ('execlp', p, p), ('execvpe', p, [p], os.environ)]:\n    assert here(*words) == 7, words\n\
         print('started')\n"
    );
    for words in [vec!["python3", "-c", &script], vec!["sh", "-c", program]] {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        harness::accelerate(&mut command, harness::library());
        let output = command.output().unwrap();
        let is_shell = words[0] == "sh";
        assert_eq!(output.status.code(), Some(if is_shell { 7 } else { 0 }), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn program_of_another_c_library_is_started_without_this_one() {
    let folder = tempfile::tempdir().unwrap();
    check_starts(&compile(&["musl-gcc"], folder.path()));
}

#[test]
fn program_that_is_sanitized_is_started_without_this_library() {
    let folder = tempfile::tempdir().unwrap();
    check_starts(&compile(&["gcc", "-fsanitize=address"], folder.path()));
}

#[test]
fn static_program_is_started() {
    let folder = tempfile::tempdir().unwrap();
    check_starts(&compile(&["gcc", "-static"], folder.path()));
}
