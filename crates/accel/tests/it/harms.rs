//! Places in which a program may run, and programs that it may start: the outcome is the same with
//! the library and without it. What the library cannot serve there stays on the kernel.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libc::{c_int, c_long};

use crate::calls::*;
use crate::harness::{c_string, note};
use crate::limits::{check_program, exchange, exchange_on_new_connections, limit};
use crate::support::*;

behaviours![
    each_call_of_the_library_refused_from_the_start,
    all_calls_but_a_few_refused_from_now_on,
    strict_mode_of_system_calls,
    a_group_with_little_memory,
    a_full_folder_for_shared_memory,
    a_root_without_proc_and_without_devices,
    all_descriptors_closed_through_the_c_library,
    without_capabilities_and_as_nobody,
    without_an_environment,
    a_static_child_answers,
    a_child_of_32_bits_answers,
    a_child_that_gains_privileges_answers,
    a_c_library_of_another_namespace_writes,
    a_process_that_may_not_be_looked_at,
];

/// Calls that the library makes and these programs do not.
const REFUSED: &[c_long] = &[
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_pidfd_open,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_prlimit64,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_madvise,
    libc::SYS_getpeername,
    libc::SYS_getrandom,
    libc::SYS_fstatfs,
    libc::SYS_ioctl,
    libc::SYS_membarrier,
    libc::SYS_rseq,
];

/// A filter that answers `action` to the calls of the list, or to all but those.
fn install_filter(calls: &[c_long], refuses_listed: bool, action: u32) {
    let statement = |code: u32, jumps: [u8; 2], k: u32| libc::sock_filter {
        code: code as u16,
        jt: jumps[0],
        jf: jumps[1],
        k,
    };
    let answer = |is_listed: bool| {
        let k = if is_listed == refuses_listed { action } else { libc::SECCOMP_RET_ALLOW };
        statement(libc::BPF_RET, [0, 0], k)
    };
    let mut filter = [answer(false); 72];
    filter[0] = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, [0, 0], 0);
    let mut length = 1;
    for call in calls {
        filter[length] =
            statement(libc::BPF_JMP | libc::BPF_JEQ, [0, 1], u32::try_from(*call).unwrap());
        filter[length + 1] = answer(true);
        length += 2;
    }
    let program = libc::sock_fprog { len: length as u16 + 1, filter: filter.as_mut_ptr() };
    // SAFETY: the filter is live for the call, and ends with an answer.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// As containers and service managers refuse calls: one after the other.
fn each_call_of_the_library_refused_from_the_start() {
    for call in REFUSED {
        note(&format!("system call {call} is refused"));
        check_program("exchange_on_new_connections", move || install_filter(&[*call], true, EPERM));
    }
    check_program("exchange_of_two_threads", || install_filter(REFUSED, true, EPERM));
}

/// What a program needs that has opened everything.
const NEEDED: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_exit_group,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_sigaltstack,
];

/// The filter may refuse with an error, or end the process.
fn all_calls_but_a_few_refused_from_now_on() {
    for action in [EPERM, libc::SECCOMP_RET_KILL_PROCESS] {
        for pair in [unused_pair(), joined_pair()] {
            spawn(|| {
                install_filter(NEEDED, false, action);
                exchange(pair);
            })
            .join();
            close(pair.client).unwrap();
            close(pair.server).unwrap();
        }
    }
}

fn strict_mode_of_system_calls() {
    for pair in [unused_pair(), joined_pair()] {
        let child = fork();
        if child == 0 {
            close(pair.client).unwrap();
            let mut bytes = [0_u8; 64];
            // SAFETY: the bytes are live; only these calls are allowed now.
            unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT), 0);
                loop {
                    let count = libc::read(pair.server, bytes.as_mut_ptr().cast(), 64);
                    if count <= 0 {
                        libc::syscall(libc::SYS_exit, 0);
                    }
                    libc::write(pair.server, bytes.as_ptr().cast(), count as usize);
                }
            }
        }
        close(pair.server).unwrap();
        for round in 0..100 {
            send_all(pair.client, &pattern(round, 60));
            assert_bytes(&recv_exact(pair.client, 60), &pattern(round, 60));
        }
        close(pair.client).unwrap();
        assert_eq!(waitpid(child), Ok(0));
    }
}

/// A control group that this process made, for itself and its children.
struct Group(PathBuf);

impl Group {
    /// Makes one with a limit of memory and enters it. None where that is not possible.
    fn with_memory(bytes: u64) -> Option<Group> {
        let name = format!("nearmetal-test-{}", std::process::id());
        let versions =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        versions.into_iter().find_map(|(root, file)| {
            let folder = Path::new(root).join(&name);
            std::fs::create_dir(&folder).ok()?;
            let group = Group(folder);
            std::fs::write(group.0.join(file), bytes.to_string()).ok()?;
            std::fs::write(group.0.join("cgroup.procs"), "0").ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for root in ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"] {
            if self.0.parent() == Some(Path::new(root)) {
                let _ = std::fs::write(Path::new(root).join("cgroup.procs"), "0");
            }
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Many connections with large messages, one after the other and all open, within a group's memory
/// that is enough for the plain program.
fn a_group_with_little_memory() {
    let Some(_group) = Group::with_memory(24 << 20) else {
        return note("SKIPPED: this machine lets nobody make a control group with a memory limit");
    };
    let message = pattern(3, 150_000);
    spawn(|| {
        let pairs: Vec<Pair> = (0..100).map(|_| unused_pair()).collect();
        for pair in pairs.iter().cycle().take(800) {
            for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
                send_all(from, &message);
                assert_bytes(&recv_exact(to, message.len()), &message);
            }
        }
    })
    .join();
}

/// A mount namespace of this process's own.
#[track_caller]
fn own_mounts() {
    // SAFETY: strings and numbers.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0, "this test must run as root");
        let (none, root) = (std::ptr::null(), c"/".as_ptr());
        let private = libc::MS_REC | libc::MS_PRIVATE;
        assert_eq!(libc::mount(none, root, none, private, std::ptr::null()), 0);
    }
}

fn a_full_folder_for_shared_memory() {
    own_mounts();
    // SAFETY: strings; the mount is that of a namespace of this process's own.
    let mounted = unsafe {
        let (kind, at) = (c"tmpfs".as_ptr(), c"/dev/shm".as_ptr());
        libc::mount(kind, at, kind, 0, c"size=4k".as_ptr().cast())
    };
    assert_eq!(mounted, 0, "{:?}", errno());
    let mut file = std::fs::File::create("/dev/shm/full").unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    exchange_on_new_connections();
    check_both_directions(joined_pair());
}

/// The program has opened what it needs, and enters an empty root.
fn a_root_without_proc_and_without_devices() {
    let before = [unused_pair(), joined_pair()];
    let folder = tempfile::tempdir().unwrap();
    let path = c_string(folder.path().to_str().unwrap());
    // SAFETY: strings.
    unsafe {
        assert_eq!(libc::chroot(path.as_ptr()), 0, "this test must run as root");
        assert_eq!(libc::chdir(c"/".as_ptr()), 0);
    }
    before.into_iter().for_each(exchange);
    exchange_on_new_connections();
    // Its folder has another name now.
    let _ = folder.keep();
}

unsafe extern "C" {
    /// `closefrom(3)`, which libc's crate does not have.
    fn closefrom(first: Fd);
}

fn all_descriptors_closed_through_the_c_library() {
    let pair = joined_pair();
    assert!(pair.client.max(pair.server) < 40);
    let kept = [dup2(pair.client, 40).unwrap(), dup2(pair.server, 41).unwrap()];
    // SAFETY: nothing uses the descriptors any more.
    unsafe {
        assert_eq!(libc::close_range(3, 39, 0), 0);
        closefrom(42);
    }
    exchange(Pair { client: kept[0], server: kept[1] });
    exchange_on_new_connections();
    // SAFETY: as above.
    unsafe { closefrom(3) };
    exchange_on_new_connections();
}

fn without_capabilities_and_as_nobody() {
    let before = [unused_pair(), joined_pair()];
    // SAFETY: no pointers but an empty list; this process is root, and nobody afterwards.
    let changed = unsafe {
        (0..=40).for_each(|capability| {
            libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
        });
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setgid(65_534) == 0
            && libc::setuid(65_534) == 0
    };
    assert!(changed, "this test must run as root: {:?}", errno());
    before.into_iter().for_each(exchange);
    exchange_on_new_connections();
}

/// A process that nobody may trace, and whose folder in /proc is root's.
fn a_process_that_may_not_be_looked_at() {
    let before = [unused_pair(), joined_pair()];
    // SAFETY: plain numbers.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0), 0);
        assert_eq!(libc::setuid(65_534), 0, "this test must run as root");
    }
    before.into_iter().for_each(exchange);
    exchange_on_new_connections();
}

fn without_an_environment() {
    let body = concat!(module_path!(), "::without_an_environment");
    if std::env::var_os("HARM_CHILD").is_some() {
        return exchange_on_new_connections();
    }
    let mut command = Command::new("env");
    command.arg("-i").arg("HARM_CHILD=1").arg(format!("NEARMETAL_TEST_BODY={body}"));
    let status = command.arg(std::env::current_exe().unwrap()).status().unwrap();
    assert!(status.success(), "{status}");
}

/// A program without a C library: it answers with what it receives on its standard streams.
const ANSWERS: &str = "
#if defined(__i386__)
static int call(int n, int a, void *b, int c) {
    int r;
    __asm__ volatile(\"int $0x80\" : \"=a\"(r)
        : \"a\"(n), \"b\"(a), \"c\"(b), \"d\"(c) : \"memory\");
    return r;
}
enum { EXIT = 1, READ = 3, WRITE = 4 };
void _start(void) {
    char b[256];
    int n;
    while ((n = call(READ, 0, b, 256)) > 0)
        call(WRITE, 1, b, n);
    call(EXIT, 7, 0, 0);
}
#else
#include <unistd.h>
int main(void) {
    char b[256];
    int n;
    while ((n = read(0, b, 256)) > 0)
        if (write(1, b, n) != n)
            return 1;
    return 7;
}
#endif
";

/// Compiles [`ANSWERS`] with these words.
#[track_caller]
fn answering_program(folder: &Path, words: &[&str]) -> PathBuf {
    let (source, program) = (folder.join("answers.c"), folder.join("answers"));
    std::fs::write(&source, ANSWERS).unwrap();
    let mut command = Command::new("gcc");
    command.args(words).env_remove("LD_PRELOAD").arg("-o").arg(&program).arg(&source);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Starts a program with an end of a connection as its standard streams, and talks to it.
#[track_caller]
fn check_answers(program: &Path) {
    for pair in [unused_pair(), joined_pair()] {
        send_all(pair.client, b"before it starts");
        let streams = [pair.server; 2].map(|fd| dup(fd).unwrap());
        let mut command = Command::new(program);
        // SAFETY: the descriptors are new, and nothing else uses them.
        unsafe {
            use std::os::fd::FromRawFd as _;
            command.stdin(Stdio::from_raw_fd(streams[0]));
            command.stdout(Stdio::from_raw_fd(streams[1]));
        }
        let mut child = command.spawn().unwrap();
        drop(command);
        close(pair.server).unwrap();
        assert_eq!(recv_exact(pair.client, 16), b"before it starts");
        for round in 0..50 {
            send_all(pair.client, &pattern(round, 200));
            assert_bytes(&recv_exact(pair.client, 200), &pattern(round, 200));
        }
        shutdown(pair.client, libc::SHUT_WR).unwrap();
        assert_eq!(recv_to_end(pair.client), (vec![], Ok(())));
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }
}

fn a_static_child_answers() {
    let folder = tempfile::tempdir().unwrap();
    check_answers(&answering_program(folder.path(), &["-static"]));
}

fn a_child_of_32_bits_answers() {
    if cfg!(not(target_arch = "x86_64")) {
        return note("SKIPPED: this machine runs no programs of 32 bits");
    }
    let folder = tempfile::tempdir().unwrap();
    let words = ["-m32", "-nostdlib", "-static", "-fno-pie", "-no-pie", "-fno-stack-protector"];
    check_answers(&answering_program(folder.path(), &words));
}

/// The loader preloads nothing there.
fn a_child_that_gains_privileges_answers() {
    let folder = tempfile::tempdir().unwrap();
    let program = answering_program(folder.path(), &[]);
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::os::unix::fs::chown(&program, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(&program, mode(0o4755)).unwrap();
    std::fs::set_permissions(folder.path(), mode(0o755)).unwrap();
    spawn(|| {
        // SAFETY: plain numbers; this process is root, and nobody afterwards.
        assert_eq!(unsafe { libc::setuid(65_534) }, 0, "this test must run as root");
        check_answers(&program);
    })
    .join();
}

/// A plug-in with a C library of its own writes from the start: its bytes keep their order.
fn a_c_library_of_another_namespace_writes() {
    type Write = unsafe extern "C" fn(c_int, *const libc::c_void, usize) -> isize;
    // SAFETY: strings; the function has this type.
    let past = unsafe {
        let handle = libc::dlmopen(libc::LM_ID_NEWLM, c"libc.so.6".as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null(), "the C library cannot be opened again");
        let found = libc::dlsym(handle, c"write".as_ptr());
        std::mem::transmute::<*mut libc::c_void, Option<Write>>(found).expect("a function")
    };
    let pair = unused_pair();
    let mut wanted = vec![];
    for number in 0..500_u64 {
        let bytes = number.to_le_bytes();
        wanted.extend(bytes);
        if number % 2 == 0 {
            // SAFETY: the bytes are live.
            assert_eq!(unsafe { past(pair.client, bytes.as_ptr().cast(), 8) }, 8);
        } else {
            send_all(pair.client, &bytes);
        }
    }
    assert_bytes(&recv_exact(pair.server, wanted.len()), &wanted);
    limit(libc::RLIMIT_CORE, 0);
}

/// A debugger stops and continues the program again and again while it exchanges messages.
#[test]
fn a_debugger_that_comes_and_goes_changes_nothing() {
    use crate::harness::{Side, another};
    for side in [Side::Kernel, Side::Accelerated] {
        let mut program =
            another("it::limits::exchange_of_two_threads", side).spawn().expect("this program");
        let id = program.id().to_string();
        for _ in 0..4 {
            let debugger = Command::new("gdb")
                .args(["-q", "-nx", "-batch", "-ex", "thread apply all bt 1", "-p", &id])
                .output()
                .expect("gdb is installed");
            drop(debugger);
        }
        assert!(program.wait().unwrap().success(), "{side:?}");
    }
}
