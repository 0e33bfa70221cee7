//! Guests: the image of this very program boots under emulation, serves, and powers off.
//!
//! They need `qemu-system-x86_64` and a kernel for guests: the host's own, or the one that
//! `NEARMETAL_TEST_KERNEL` names. Without them the tests fail on CI, and say elsewhere that they did
//! not run.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nm_model::{Answer, Request, Side};
use nm_sys::process::ChildProcess;
use nm_vm::boot::BootSettings;
use nm_vm::image::{Image, ImageParts};
use nm_vm::kernel::GuestKernel;

use crate::harness::Test;

pub const TESTS: &[Test] = &[("guests::guest_boots_describes_itself_and_powers_off", boots)];

/// A guest may be emulated on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

const QEMU: &str = "qemu-system-x86_64";

/// The kernel of the tests, if this machine can run guests at all.
fn kernel() -> Option<GuestKernel> {
    let choice = std::env::var("NEARMETAL_TEST_KERNEL").ok();
    let missing = match (
        Command::new(QEMU).arg("--version").output(),
        GuestKernel::find(choice.as_deref()),
    ) {
        (Ok(_), Ok(kernel)) => return Some(kernel),
        (Err(error), _) => format!("{QEMU}: {error}"),
        (_, Err(error)) => error.to_string(),
    };
    assert!(std::env::var_os("CI").is_none(), "{missing}");
    println!("    did not run: {missing}");
    None
}

/// A running guest, driven by lines of the agent protocol.
struct Guest {
    process: ChildProcess,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    console: Receiver<String>,
}

impl Guest {
    fn start(kernel: &GuestKernel, image: &Image, settings: &BootSettings, more: &[&str]) -> Guest {
        let name = format!("nm-lab-image-{}-{}", std::process::id(), settings.side);
        let file = std::env::temp_dir().join(name);
        fs::write(&file, &image.bytes).unwrap();
        let words = settings.words().join(" ");
        let mut command = Command::new(QEMU);
        command
            .args(["-M", "q35,accel=tcg", "-cpu", "max", "-m", "512", "-smp", "1"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-append", &format!("console=ttyS0 quiet panic=-1 {words}")])
            .args(["-serial", "file:/proc/self/fd/2"])
            .args(["-chardev", "stdio,id=ctl,signal=off", "-device", "virtio-serial-pci"])
            .args(["-device", "virtserialport,chardev=ctl,name=nm.ctl"])
            .args(more)
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(&file);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = ChildProcess::spawn(command).unwrap();
        let guest = Guest {
            input: process.take_stdin(),
            answers: lines(process.take_stdout().unwrap()),
            console: lines(process.take_stderr().unwrap()),
            process,
        };
        let hello = guest.answer();
        // QEMU has read it before it starts the guest.
        fs::remove_file(file).unwrap();
        assert!(matches!(hello, Some(Answer::Hello { pid: 1, .. })), "{hello:?}");
        guest
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

    /// Closes the control port, and waits for the guest's end. The console's lines.
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

fn image(kernel: &GuestKernel) -> Image {
    Image::build(&ImageParts::of_this_program(kernel).unwrap()).unwrap()
}

fn boots() {
    let Some(kernel) = kernel() else { return };
    let mut guest = Guest::start(&kernel, &image(&kernel), &BootSettings::new(Side::Client), &[]);
    guest.send(&Request::Describe);
    let Some(Answer::Facts(facts)) = guest.answer() else { panic!("no facts") };
    assert_eq!(facts.virtualization.hypervisor.as_deref(), Some("QEMU TCG"));
    assert_eq!(facts.cpu.online, 1);
    let console = guest.end();
    assert!(console.iter().any(|line| line.contains("client is ready")), "{console:?}");
    assert!(console.iter().any(|line| line.contains("powering off")), "{console:?}");
}
