//! The command line of one guest.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;

use nm_model::{GuestExecution, GuestId};
use nm_ring::window::MEMORY_BYTES;
use nm_sys::hardware_address;
use nm_sys::process::inherit;

use crate::boot::CONTROL_PORT;
use crate::memory::GuestMemory;
use crate::network;
use crate::qemu::{CONFINED, Qemu};

/// Machine type of guests.
pub const MACHINE: &str = "q35";

/// What a guest's network device is connected to.
#[derive(Debug)]
pub enum GuestNic {
    /// A connected datagram socket, whose other end is the other guest's.
    Wire {
        /// The socket.
        socket: OwnedFd,
    },
    /// A tap device in the network namespace in which QEMU starts.
    Tap {
        /// Its name.
        name: String,
        /// Whether the kernel moves its packets (vhost-net).
        vhost: bool,
    },
    /// A function of a physical device, bound to vfio-pci.
    Passthrough {
        /// Its PCI address, such as `0000:3b:02.0`.
        address: String,
    },
}

/// One guest.
#[derive(Debug)]
pub struct Machine {
    /// Which guest of an environment it is.
    pub guest: GuestId,
    /// What executes it.
    pub execution: GuestExecution,
    /// Its virtual CPUs.
    pub cpus: u32,
    /// Whether each of them has a core of the host for itself.
    pub is_pinned: bool,
    /// Its memory.
    pub memory: GuestMemory,
    /// Image of its kernel.
    pub kernel: PathBuf,
    /// Its initramfs.
    pub image: OwnedFd,
    /// Words for its agent on the kernel's command line.
    pub words: String,
    /// What it is connected to.
    pub nic: GuestNic,
    /// Memory that it shares with the other guest.
    pub shared_memory: OwnedFd,
}

impl Machine {
    /// Model of the virtual CPUs of a guest that is executed so.
    pub fn cpu_model_of(execution: GuestExecution, is_pinned: bool) -> String {
        if execution == GuestExecution::Tcg {
            return "max".to_string();
        }
        let mut model = "host,migratable=off,+invtsc".to_string();
        if is_pinned {
            // Locks of the guest need no help by the hypervisor if no virtual CPU is preempted.
            model += ",kvm-hint-dedicated=on";
        }
        model
    }

    /// The command that runs it. The agent is driven over standard input and output; the console
    /// is on standard error.
    pub fn command(self, qemu: &Qemu) -> Command {
        let mut command = Command::new(&qemu.program);
        let accelerator = match self.execution {
            GuestExecution::Tcg => "tcg",
            _ => "kvm",
        };
        command
            .args(["-name", &format!("nm-{},debug-threads=on", self.guest)])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-M", &format!("{MACHINE},accel={accelerator},memory-backend=ram")])
            .args(["-cpu", &Machine::cpu_model_of(self.execution, self.is_pinned)])
            .args(["-smp", &format!("{},sockets=1,threads=1", self.cpus)])
            .args(["-m", &format!("{}M", self.memory.mib)])
            .args(["-object", &memory_object(&self.memory)]);
        if qemu.has_sandbox {
            command.args(CONFINED);
        }
        if self.memory.is_locked {
            command.args(["-overcommit", "mem-lock=on"]);
        }
        let image = inherit(&mut command, self.image);
        let shared = inherit(&mut command, self.shared_memory);
        command
            .arg("-kernel")
            .arg(&self.kernel)
            .args(["-initrd", &format!("/proc/self/fd/{image}")])
            .args(["-append", &format!("console=ttyS0 quiet panic=-1 {}", self.words)])
            .args(["-serial", "file:/proc/self/fd/2"])
            .args(["-chardev", "stdio,id=ctl,signal=off", "-device", "virtio-serial-pci"])
            .args(["-device", &format!("virtserialport,chardev=ctl,name={CONTROL_PORT}")]);
        connect(&mut command, self.nic, self.guest);
        let shared = format!("/proc/self/fd/{shared}");
        command
            .arg("-object")
            .arg(format!(
                "memory-backend-file,id=shm,size={MEMORY_BYTES},share=on,mem-path={shared}"
            ))
            .args(["-device", "ivshmem-plain,memdev=shm"]);
        command
    }
}

fn memory_object(memory: &GuestMemory) -> String {
    let huge = if memory.is_huge() { ",hugetlb=on,hugetlbsize=2M" } else { "" };
    format!("memory-backend-memfd,id=ram,size={}M{huge}", memory.mib)
}

fn connect(command: &mut Command, nic: GuestNic, guest: GuestId) {
    let netdev = match nic {
        GuestNic::Passthrough { address } => {
            command.args(["-device", &format!("vfio-pci,host={address}")]);
            return;
        }
        GuestNic::Wire { socket } => {
            let socket = inherit(command, socket);
            format!("dgram,id=net,local.type=fd,local.str={socket}")
        }
        GuestNic::Tap { name, vhost } => {
            let vhost = if vhost { "on" } else { "off" };
            format!("tap,id=net,ifname={name},script=no,downscript=no,vhost={vhost}")
        }
    };
    let mac = hardware_address::text(network::hardware_address(guest));
    command.args(["-netdev", &netdev]);
    // Without a file of the network boot program, which is not needed.
    command.args(["-device", &format!("virtio-net-pci,netdev=net,mac={mac},romfile=")]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use nm_model::Side;
    use nm_sys::memory_file;

    fn words(execution: GuestExecution, is_pinned: bool, nic: GuestNic) -> Vec<String> {
        let memory = GuestMemory { mib: 256, page_kib: 2048, is_locked: is_pinned };
        let file = || memory_file::of_size("nearmetal-test", 0).unwrap();
        let machine = Machine {
            guest: Side::Server.into(),
            execution,
            cpus: 2,
            is_pinned,
            memory,
            kernel: "/boot/vmlinuz".into(),
            image: file(),
            words: "nm.side=server".to_string(),
            nic,
            shared_memory: file(),
        };
        let qemu = Qemu {
            program: "qemu".into(),
            version: String::new(),
            features: Features::default(),
            has_sandbox: execution == GuestExecution::Tcg,
        };
        let command = machine.command(&qemu);
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn translated_guest_on_a_wire() {
        let (socket, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let words =
            words(GuestExecution::Tcg, false, GuestNic::Wire { socket: socket.into() }).join(" ");
        assert!(words.contains("-M q35,accel=tcg,memory-backend=ram -cpu max -smp 2"), "{words}");
        assert!(words.contains("size=256M,hugetlb=on,hugetlbsize=2M"), "{words}");
        assert!(words.contains("-append console=ttyS0 quiet panic=-1 nm.side=server"), "{words}");
        assert!(words.contains("dgram,id=net,local.type=fd,local.str="), "{words}");
        assert!(words.contains("mac=52:54:00:6e:6d:02,romfile="), "{words}");
        assert!(!words.contains("mem-lock"), "{words}");
        assert!(words.contains(&format!(" {} ", CONFINED.join(" "))), "{words}");
    }

    #[test]
    fn native_guest_with_a_function_of_a_device() {
        let nic = GuestNic::Passthrough { address: "0000:3b:02.0".to_string() };
        let words = words(GuestExecution::RealKvm, true, nic).join(" ");
        assert!(
            words.contains("accel=kvm") && words.contains("-device vfio-pci,host=0000:3b:02.0")
        );
        assert!(words.contains("-cpu host,migratable=off,+invtsc,kvm-hint-dedicated=on"));
        assert!(!words.contains("-sandbox"), "{words}");
        assert!(words.contains("-overcommit mem-lock=on") && !words.contains("netdev"), "{words}");
        let tap = GuestNic::Tap { name: "nm-port1".to_string(), vhost: true };
        let words = self::words(GuestExecution::NestedKvm, false, tap).join(" ");
        assert!(words.contains("ifname=nm-port1,script=no,downscript=no,vhost=on"), "{words}");
        assert!(!words.contains("kvm-hint-dedicated"), "{words}");
    }
}
