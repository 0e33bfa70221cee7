//! Guests: the image of this very program boots under emulation, serves, and powers off.
//!
//! They need `qemu-system-x86_64` and a kernel for guests: the host's own, or the one that
//! `NEARMETAL_GUEST_KERNEL` names. Without them the tests fail on CI, and say elsewhere that they
//! did not run.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nm_lab::environment::KERNEL_VARIABLE;
use nm_model::agent::{Stage, Task, TaskReport, Token, Work};
use nm_model::probe::{Pattern, PingpongSpec, StreamSpec};
use nm_model::{
    Answer, ComputeSpec, FailureKind, JitterSpec, Layout, Request, SettingKind, Side, Workload,
};
use nm_ring::window::MEMORY_BYTES;
use nm_sys::private_folder::PrivateFolder;
use nm_sys::process::ChildProcess;
use nm_vm::boot::{BootSettings, NO_TIMER_CHECK};
use nm_vm::image::{Image, ImageParts};
use nm_vm::kernel::GuestKernel;

use crate::harness::Test;

pub const TESTS: &[Test] = &[
    ("guests::guest_boots_describes_itself_and_powers_off", boots),
    ("guests::guest_with_wrong_settings_says_so_and_powers_off", wrong_settings),
    ("guests::guest_whose_program_panics_powers_off", panics),
    ("guests::guest_whose_program_ends_ends", ends),
    ("guests::two_guests_run_all_probes", all_probes),
];

/// A guest may be emulated on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

const QEMU: &str = "qemu-system-x86_64";

/// Words that the kernel passes on to this program, the first process of a guest.
const PANIC: &str = "nearmetal_test_panic";
const END: &str = "nearmetal_test_end";

/// This program as the first process of a guest.
pub fn init() -> ExitCode {
    let is_asked = |word: &str| std::env::args().any(|argument| argument == word);
    if is_asked(END) {
        return ExitCode::FAILURE;
    }
    if is_asked(PANIC) {
        nm_lab::guest::run_first_process(|| panic!("as the test asked for"));
    }
    nm_lab::guest::run()
}

/// The kernel of the tests, if this machine can run guests at all.
fn kernel() -> Option<GuestKernel> {
    let fetched = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target/guest-kernel");
    let fetched = Path::new(fetched).exists().then(|| fetched.to_string());
    let choice = std::env::var(KERNEL_VARIABLE).ok().or(fetched);
    let qemu = Command::new(QEMU).arg("--version").output();
    let missing = match (qemu, GuestKernel::find(choice.as_deref())) {
        (Ok(_), Ok(kernel)) => return Some(kernel),
        (Err(error), _) => format!("{QEMU}: {error}"),
        (_, Err(error)) => error.to_string(),
    };
    nm_test_support::skip::can_run(false, &missing);
    None
}

/// The image of this program in a file that is removed at the end.
struct ImageFile(PathBuf);

impl ImageFile {
    fn new(kernel: &GuestKernel) -> ImageFile {
        let path = std::env::temp_dir().join(format!("nm-lab-image-{}", std::process::id()));
        let image = Image::build(&ImageParts::of_this_program(kernel).unwrap()).unwrap();
        fs::write(&path, image.bytes).unwrap();
        ImageFile(path)
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A running guest, driven by lines of the agent protocol.
struct Guest {
    process: ChildProcess,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    console: Receiver<String>,
}

impl Guest {
    /// Starts a guest with these words on its kernel's command line.
    fn launch(kernel: &GuestKernel, image: &Path, words: &str, devices: &[String]) -> Guest {
        let mut command = Command::new(QEMU);
        command
            .args(["-M", "q35,accel=tcg", "-cpu", "max", "-m", "512", "-smp", "1"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-append", &format!("console=ttyS0 quiet panic=-1 {NO_TIMER_CHECK} {words}")])
            .args(["-serial", "file:/proc/self/fd/2"])
            .args(["-chardev", "stdio,id=ctl,signal=off", "-device", "virtio-serial-pci"])
            .args(["-device", "virtserialport,chardev=ctl,name=nm.ctl"])
            .args(devices)
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(image);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = ChildProcess::spawn(command).unwrap();
        Guest {
            input: process.take_stdin(),
            answers: lines(process.take_stdout().unwrap()),
            console: lines(process.take_stderr().unwrap()),
            process,
        }
    }

    fn wait_for_hello(&self) {
        let hello = self.answered("hello");
        assert!(matches!(hello, Answer::Hello { pid: 1, .. }), "{hello:?}");
    }

    fn send(&mut self, request: &Request) {
        let line = serde_json::to_string(request).unwrap();
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next answer that is not a report of progress; none if the guest has ended.
    fn answer(&self) -> Option<Answer> {
        loop {
            let line = self.answers.recv_timeout(LIMIT).ok()?;
            match serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")) {
                Answer::Progress { .. } | Answer::Samples { .. } => {}
                answer => return Some(answer),
            }
        }
    }

    /// The next answer, which must not be a failure.
    fn answered(&self, what: &str) -> Answer {
        match self.answer() {
            None => panic!("{what}: {:?}", self.console.try_iter().collect::<Vec<_>>()),
            Some(Answer::Failed(failure)) => panic!("{what}: {failure}"),
            Some(answer) => answer,
        }
    }

    /// Closes the control port, and waits for the guest's end; the lines of its console.
    fn end(mut self) -> Vec<String> {
        drop(self.input.take());
        let status = self.process.wait_timeout(LIMIT).expect("the guest powers off");
        assert!(status.success(), "{status}");
        self.console.iter().collect()
    }
}

fn lines(input: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(input).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn boots() {
    let Some(kernel) = kernel() else { return };
    let image = ImageFile::new(&kernel);
    let words = BootSettings::new(Side::Client).words().join(" ");
    let mut guest = Guest::launch(&kernel, &image.0, &words, &[]);
    guest.wait_for_hello();
    guest.send(&Request::Describe);
    let Answer::Facts(facts) = guest.answered("describe") else { panic!("no facts") };
    assert_eq!(facts.virtualization.hypervisor.as_deref(), Some("QEMU TCG"));
    assert_eq!(facts.virtualization.container, None);
    assert_eq!((facts.cpu.online, &facts.cpu.allowed[..]), (1, &[0][..]));
    assert_eq!(facts.host.kernel, kernel.release);
    assert_eq!(facts.host.name, "nm-client");
    let own = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(facts.host.boot_id.is_some_and(|id| id != own.trim()), "a kernel of its own");
    let console = guest.end();
    assert!(has(&console, "client is ready"), "{console:?}");
    assert!(has(&console, "the controller has gone; powering off"), "{console:?}");
}

/// The console of a guest that ends without an agent.
fn console_of_failed(words: &str) -> Option<Vec<String>> {
    let kernel = kernel()?;
    let image = ImageFile::new(&kernel);
    let guest = Guest::launch(&kernel, &image.0, words, &[]);
    assert_eq!(guest.answer(), None, "no agent");
    Some(guest.end())
}

fn has(console: &[String], part: &str) -> bool {
    console.iter().any(|line| line.contains(part))
}

fn wrong_settings() {
    let Some(console) = console_of_failed("nm.side=middle") else { return };
    let expected = "`nm.side=middle` on the kernel's command line: a side is client or server";
    assert!(has(&console, expected), "{console:?}");
}

fn panics() {
    let Some(console) = console_of_failed(&format!("nm.side=client {PANIC}")) else { return };
    assert!(has(&console, "as the test asked for"), "{console:?}");
    assert!(has(&console, "this is a defect of nearmetal; powering off"), "{console:?}");
}

/// A program that ends makes its kernel panic, which ends QEMU as well.
fn ends() {
    let Some(console) = console_of_failed(&format!("nm.side=client {END}")) else { return };
    assert!(has(&console, "Kernel panic"), "{console:?}");
}

/// The devices of one of two guests: a virtual NIC, joined with the other's by Unix datagram
/// sockets, and memory that both have.
fn devices(folder: &Path, own: &str, other: &str, mac: [u8; 6]) -> Vec<String> {
    let path = |name: &str| folder.join(name).display().to_string();
    let (own, other, memory) = (path(own), path(other), path("memory"));
    let paths = format!("local.type=unix,local.path={own},remote.type=unix,remote.path={other}");
    let offloads = "guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,guest_csum=off";
    [
        "-netdev",
        &format!("dgram,id=n0,{paths}"),
        "-device",
        &format!(
            "virtio-net-pci,netdev=n0,mac={},romfile=,{offloads}",
            nm_sys::hardware_address::text(mac)
        ),
        "-object",
        &format!("memory-backend-file,id=shm,share=on,size={MEMORY_BYTES},mem-path={memory}"),
        "-device",
        "ivshmem-plain,memdev=shm",
    ]
    .map(str::to_string)
    .to_vec()
}

/// Two guests, client and server, connected by a virtual wire and by shared memory.
fn pair(kernel: &GuestKernel, image: &Path, folder: &Path) -> [Guest; 2] {
    let ends = [(Side::Client, "a", "b", 1u8), (Side::Server, "b", "a", 2)];
    let guests = ends.map(|(side, own, other, number)| {
        let mac = [0x52, 0x54, 0, 0x6e, 0x6d, number];
        let addresses = [format!("10.77.0.{number}/24"), format!("fd77::{number}/64")];
        let addresses = addresses.map(|text| text.parse().unwrap()).to_vec();
        let settings = BootSettings { side, addresses, mac: Some(mac), mtu: None };
        let words = settings.words().join(" ");
        Guest::launch(kernel, image, &words, &devices(folder, own, other, mac))
    });
    guests.iter().for_each(Guest::wait_for_hello);
    guests
}

fn task(stack: &str, work: &Work) -> Box<Task> {
    Box::new(Task {
        stack: stack.parse().unwrap(),
        cpus: vec![0],
        work: work.clone(),
        seed: 1,
        raw_samples: false,
        token: Token([7; 16]),
    })
}

/// Has an end listen; its addresses.
fn listen(guest: &mut Guest, side: Side, task: &Task, address: &str) -> Vec<String> {
    let stage = Stage::Listen { address: address.to_string() };
    guest.send(&Request::Prepare { side, task: Box::new(task.clone()), stage });
    match guest.answered(&task.stack.to_string()) {
        Answer::Prepared { addresses } => addresses,
        other => panic!("{}: {other:?}", task.stack),
    }
}

/// Runs a task at both ends; their reports, the client's first.
fn run([client, server]: &mut [Guest; 2], stack: &str, work: &Work) -> (TaskReport, TaskReport) {
    let task = task(stack, work);
    let at_server = listen(server, Side::Server, &task, "10.77.0.2");
    let at_client = listen(client, Side::Client, &task, "10.77.0.1");
    let both = [(Side::Server, &mut *server, at_client), (Side::Client, &mut *client, at_server)];
    for (side, guest, addresses) in both {
        let stage = Stage::Connect { addresses };
        guest.send(&Request::Prepare { side, task: task.clone(), stage });
    }
    for guest in [&*client, &*server] {
        assert!(matches!(guest.answered(stack), Answer::Prepared { .. }), "{stack}");
    }
    server.send(&Request::Run);
    client.send(&Request::Run);
    let report = |guest: &Guest| match guest.answered(stack) {
        Answer::Done(report) => *report,
        other => panic!("{stack}: {other:?}"),
    };
    (report(client), report(server))
}

fn all_probes() {
    let Some(kernel) = kernel() else { return };
    let folder = PrivateFolder::create(&std::env::temp_dir(), "nm-lab-guests-").unwrap();
    let image = ImageFile::new(&kernel);
    let mut guests = pair(&kernel, &image.0, folder.path());
    let spec = PingpongSpec {
        max_iterations: 200,
        min_iterations: 20,
        max_ms: 20_000,
        warmup_ms: 50,
        timeout_ms: 20_000,
        ..Default::default()
    };
    let pingpong = Work::Pingpong(spec.of_size(64));
    for stack in [
        "tcp-blocking",
        "udp-blocking",
        "udp-epoll",
        "mcast-blocking",
        "xdp-blocking",
        "xdp-tcp-blocking",
        "shm-spin",
    ] {
        let (report, _) = run(&mut guests, stack, &pingpong);
        assert!(!report.latencies.is_empty(), "{stack}: {report:?}");
        let has_memory = report.settings.contains(&SettingKind::GuestMemory);
        assert_eq!(has_memory, stack == "shm-spin", "{stack}: {:?}", report.settings);
    }
    let pattern = Pattern { flows: 2, bidirectional: true };
    let spec = StreamSpec { seconds: 0.5, omit_ms: 0, ..Default::default() };
    let stream = Work::Stream(spec.of_pattern(pattern));
    for stack in ["tcp-blocking", "shm-spin"] {
        let (client, server) = run(&mut guests, stack, &stream);
        let bytes =
            |report: &TaskReport| report.received.iter().map(|flow| flow.bytes).sum::<u64>();
        assert!(bytes(&client) > 0 && bytes(&server) > 0, "{stack}");
    }
    let spec = ComputeSpec { repeats: 1, ..Default::default() };
    let pi = Work::Compute(spec.of_layout(Workload::Pi, Layout::SOLO));
    let jitter = Work::Jitter(JitterSpec { seconds: 0.2, ..Default::default() });
    for work in [pi, jitter] {
        let (client, _) = run(&mut guests, "cpu-spin", &work);
        assert!(!client.latencies.is_empty(), "{work:?}");
    }
    // No thread of one guest can be woken by the other.
    let [_, server] = &mut guests;
    let stage = Stage::Listen { address: "10.77.0.2".into() };
    let task = task("shm-blocking", &pingpong);
    server.send(&Request::Prepare { side: Side::Server, task, stage });
    let Some(Answer::Failed(failure)) = server.answer() else { panic!("shm-blocking") };
    assert_eq!(failure.kind, FailureKind::NotAvailable);
    assert!(failure.message.contains("use shm-spin"), "{failure}");
    for guest in guests {
        let console = guest.end();
        assert!(has(&console, "shared memory of the guests: WriteBack"), "{console:?}");
    }
}
