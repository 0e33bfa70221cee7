//! A bare-metal host that QEMU emulates: a processor with virtualization, an IOMMU with interrupt
//! remapping and two SR-IOV NICs. In it `nearmetal lab` starts guests on KVM, with a virtual
//! function and with a NIC passed through to each, and with vhost-net. So these parts are tested on
//! machines that have none of it. Figures mean nothing there.

mod host_image;
mod packages;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nm_sys::clock::Moment;
use nm_sys::process::ChildProcess;

use crate::shell;
use packages::Packages;

/// What the emulated host must report, each with code 0.
const STEPS: [&str; 9] = [
    "ready",
    "plan",
    "functions",
    "functions-result",
    "nics",
    "nics-result",
    "vhost",
    "vhost-result",
    "unchanged",
];

/// Longest time that it may say nothing. A step is silent until its end.
const SILENCE_MAX: Duration = Duration::from_secs(1_200);

/// Memory of the emulated host, MiB: its files, two guests and their files.
const MEMORY_MIB: u32 = 2_800;

/// From this size on the machine type q35 puts a part of the memory above 4 GiB, MiB.
const LOW_MEMORY_MIB: u32 = 2_816;

// With memory there, the firmware puts the registers of virtual functions there too. QEMU 10.0 then
// uses only the lower half of their address (a defect until 10.1.2): their driver reaches nothing.
const _: () = assert!(MEMORY_MIB < LOW_MEMORY_MIB);

pub fn run() -> Result<()> {
    let begin = Moment::now();
    let folder = shell::root().join("target/lab-t3");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    eprintln!("packages of the emulated host:");
    let packages = Packages::fetch(&folder)?;
    shell::run("cargo build --locked -p nearmetal")?;
    let image = host_image::build(&packages, &shell::root().join("target/debug/nearmetal"))?;
    let file = folder.join("host.cpio");
    std::fs::write(&file, &image).with_context(|| format!("cannot write {}", file.display()))?;
    eprintln!("emulated host: {} MiB of files", image.len() >> 20);
    let prepared_s = begin.elapsed().as_secs();
    let ended = Host::start(&packages, &file)?.watch()?;
    println!("prepared in {prepared_s} s, in all {} s", begin.elapsed().as_secs());
    let missing: Vec<&str> =
        STEPS.into_iter().filter(|step| !ended.iter().any(|name| name == step)).collect();
    if !missing.is_empty() {
        bail!("the emulated host did not come to the end of: {}", missing.join(", "));
    }
    Ok(())
}

/// The emulated host while it runs.
struct Host {
    process: ChildProcess,
}

impl Host {
    fn start(packages: &Packages, image: &Path) -> Result<Host> {
        let release = packages.kernel_release()?;
        let mut command = Command::new(packages.qemu()?);
        command.args(["-name", "host", "-nodefaults", "-no-user-config", "-display", "none"]);
        command.args(["-no-reboot", "-M", "q35,kernel-irqchip=off,accel=tcg", "-cpu", "max"]);
        // With two processors, four of five runs lost a guest or the host (docs/results/lab.md).
        command.args(["-smp", "1", "-m", &MEMORY_MIB.to_string()]);
        for share in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(packages.file(share));
        }
        command.arg("-kernel").arg(packages.file(&format!("boot/vmlinuz-{release}")));
        command.arg("-initrd").arg(image);
        command.args(["-append", "console=ttyS0 quiet panic=-1 intel_iommu=on rdinit=/init"]);
        command.args(["-serial", "stdio"]);
        // Without caching mode, which only an IOMMU that is passed on needs: it makes the host
        // invalidate each page of a guest's memory.
        command.args(["-device", "intel-iommu,intremap=on"]);
        // Two NICs on one emulated segment.
        for nic in 0..2 {
            let port = format!("pcie-root-port,id=port{nic},chassis={},slot={nic}", nic + 1);
            let hub = format!("hubport,hubid=0,id=net{nic}");
            let mac = format!("52:54:00:6e:6d:a{nic}");
            let card = format!("igb,netdev=net{nic},bus=port{nic},mac={mac},romfile=");
            command.args(["-device", &port, "-netdev", &hub, "-device", &card]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let process = ChildProcess::spawn(command).context("cannot start QEMU")?;
        Ok(Host { process })
    }

    /// Shows what it says, and returns the steps that ended with code 0.
    fn watch(mut self) -> Result<Vec<String>> {
        let output = self.process.take_stdout().context("QEMU has no output")?;
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_string()).is_err() {
                    return;
                }
            }
        });
        let mut ended = vec![];
        loop {
            let line = match lines.recv_timeout(SILENCE_MAX) {
                Ok(line) => line,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Ok(ended),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    bail!("the emulated host said nothing for {} s", SILENCE_MAX.as_secs())
                }
            };
            println!("{line}");
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["t3:", step, "0", _] = words[..] {
                ended.push(step.to_string());
            }
        }
    }
}
