//! A pair of guests as shell scripts that start QEMU: one for each guest, one that makes what
//! connects them, and one that removes it.

use nm_model::{GuestExecution, Side};
use nm_ring::window::MEMORY_BYTES;
use nm_vm::boot::CONTROL_PORT;
use nm_vm::machine::{MACHINE, Machine};
use nm_vm::network::tap_name;

use crate::pair::{PairNetwork, PairPlacement, PairRequest, SIDES, mac, place_of};

/// Name of the bridge on the host.
const BRIDGE: &str = "nm-bridge";

/// The files: `connect.sh`, `client.sh`, `server.sh` and `disconnect.sh`.
pub fn files(placement: &PairPlacement, request: &PairRequest) -> Vec<(String, String)> {
    let mut files = vec![("connect.sh".to_string(), connect(request))];
    for side in SIDES {
        files.push((format!("{}.sh", side), guest(side, placement, request)));
    }
    files.push(("disconnect.sh".to_string(), disconnect(request)));
    files
}

fn script(summary: &str, lines: &[String]) -> String {
    format!("#!/bin/sh\n# {summary}\nset -eu\n\n{}\n", lines.join("\n"))
}

/// What the guests need of the host before they start.
fn connect(request: &PairRequest) -> String {
    let mut lines = vec![];
    match &request.network {
        PairNetwork::Wire => lines.push("# Nothing: the datagram sockets are QEMU's.".to_string()),
        PairNetwork::SharedMemory => {
            lines.push("# The memory that both guests have.".to_string());
            lines.push(format!("truncate -s {MEMORY_BYTES} '{}'", memory_path(request)));
        }
        PairNetwork::Vswitch | PairNetwork::Vhost => {
            lines.push(format!("ip link add {BRIDGE} type bridge"));
            lines.push(format!("ip link set {BRIDGE} up"));
            for tap in SIDES.map(tap_name) {
                lines.push(format!("ip tuntap add {tap} mode tap"));
                lines.push(format!("ip link set {tap} master {BRIDGE} up"));
            }
            if request.network == PairNetwork::Vhost {
                lines.push("modprobe vhost_net".to_string());
            }
        }
        PairNetwork::Functions { link, .. } => {
            let device = format!("/sys/class/net/{link}/device");
            lines.push("# Two virtual functions, which the host's driver does not take.".into());
            lines.push("modprobe vfio-pci".to_string());
            lines.push(format!("echo 0 > {device}/sriov_drivers_autoprobe"));
            lines.push(format!("echo 2 > {device}/sriov_numvfs"));
            for side in SIDES {
                lines.push(format!("ip link set {link} vf {} mac {}", place_of(side), mac(side)));
            }
            for side in SIDES {
                let of_function =
                    format!("$(basename \"$(readlink {device}/virtfn{})\")", place_of(side));
                lines.push(format!("function={of_function}"));
                lines.extend(bind());
            }
        }
        PairNetwork::Devices { addresses, .. } => {
            lines.push("# The devices, which the host's drivers give up.".to_string());
            lines.push("modprobe vfio-pci".to_string());
            for address in addresses {
                lines.push(format!("function={address}"));
                lines.push(
                    "echo \"$function\" > /sys/bus/pci/devices/$function/driver/unbind".into(),
                );
                lines.extend(bind());
            }
        }
    }
    script("Makes what connects the guests; run it once, as root, before them.", &lines)
}

/// Binds `$function` to vfio-pci.
fn bind() -> [String; 2] {
    [
        "echo vfio-pci > /sys/bus/pci/devices/$function/driver_override".to_string(),
        "echo \"$function\" > /sys/bus/pci/drivers_probe".to_string(),
    ]
}

fn disconnect(request: &PairRequest) -> String {
    let folder = &request.folder;
    let mut lines = vec![
        "# Sockets of the guests, which QEMU leaves if it is killed.".to_string(),
        format!("rm -f '{folder}'/*.ctl '{folder}'/*.net"),
    ];
    match &request.network {
        PairNetwork::Wire => {}
        PairNetwork::SharedMemory => lines.push(format!("rm -f '{}'", memory_path(request))),
        PairNetwork::Vswitch | PairNetwork::Vhost => {
            lines.extend(SIDES.map(|side| format!("ip link delete {}", tap_name(side))));
            lines.push(format!("ip link delete {BRIDGE}"));
        }
        PairNetwork::Functions { link, .. } => {
            let device = format!("/sys/class/net/{link}/device");
            lines.push(format!("echo 0 > {device}/sriov_numvfs"));
            lines.push(format!("echo 1 > {device}/sriov_drivers_autoprobe"));
        }
        PairNetwork::Devices { addresses, .. } => {
            for address in addresses {
                let device = format!("/sys/bus/pci/devices/{address}");
                lines.push(format!("echo {address} > {device}/driver/unbind"));
                // A newline alone removes the override.
                lines.push(format!("echo > {device}/driver_override"));
                lines.push(format!("echo {address} > /sys/bus/pci/drivers_probe"));
            }
        }
    }
    script("Removes what connects the guests; run it as root when both have ended.", &lines)
}

fn memory_path(request: &PairRequest) -> String {
    format!("{}/shared-memory", request.folder)
}

/// The script of one guest: it ends with the guest.
fn guest(side: Side, placement: &PairPlacement, request: &PairRequest) -> String {
    let mut options = vec![
        ("name of the guest and of its threads", format!("-name nm-{},debug-threads=on", side)),
        (
            "no devices but those below",
            "-nodefaults -no-user-config -display none -no-reboot".into(),
        ),
        ("machine; KVM executes it", format!("-M {MACHINE},accel=kvm,memory-backend=ram")),
        ("the host's own processor, without what hides its clock", cpu_model(placement)),
        ("virtual CPUs, each a core", format!("-smp {},sockets=1,threads=1", request.cpus)),
        ("memory", format!("-m {}M -object {}", request.memory_mib, memory(placement, request))),
        ("memory is never swapped; raise `ulimit -l` first", "-overcommit mem-lock=on".to_string()),
        (
            "kernel, and the file system with nearmetal as the first process",
            format!("-kernel '{}' -initrd '{}'", request.kernel, request.initrd),
        ),
        (
            "where the guest's agent finds its address",
            format!("-append '{}'", request.command_lines[place_of(side)]),
        ),
        ("console", "-serial stdio".to_string()),
        ("the agent answers lines of JSON on this socket", control(side, request)),
    ];
    options.extend(network(side, request));
    // A comment cannot stand between the lines of one command.
    let explained: String =
        options.iter().map(|(why, option)| format!("# {why}: {option}\n")).collect();
    let words: Vec<&str> = options.iter().map(|(_, option)| option.as_str()).collect();
    let function = passed_function(side, request);
    let words = words.join(" \\\n    ");
    // A signal may come before the guest is started, or before its number is known.
    let start = format!(
        "# Ctrl-C ends this shell only: a program in its background ignores it.\n\
         stopped=\nqemu=\n\
         trap 'stopped=1; test -z \"$qemu\" || kill \"$qemu\"' INT TERM\n\
         qemu-system-x86_64 \\\n    {words} &\nqemu=$!\n\
         test -z \"$stopped\" || kill \"$qemu\""
    );
    let lines = [explained, function, start, pin(side, placement), "wait \"$qemu\"".to_string()];
    let lines: Vec<String> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    script(&format!("The {}'s guest; ends with it.", side), &lines)
}

fn cpu_model(placement: &PairPlacement) -> String {
    let is_pinned = !placement.others.is_empty();
    let model = Machine::cpu_model_of(GuestExecution::RealKvm, is_pinned);
    match placement.has_invariant_tsc {
        true => format!("-cpu {model}"),
        false => format!("-cpu {}", model.replace(",+invtsc", "")),
    }
}

fn memory(placement: &PairPlacement, request: &PairRequest) -> String {
    let huge = if placement.has_huge_pages { ",hugetlb=on,hugetlbsize=2M" } else { "" };
    let node = placement.node.filter(|_| !placement.others.is_empty());
    let node = node.map_or(String::new(), |node| format!(",host-nodes={node},policy=bind"));
    format!("memory-backend-memfd,id=ram,size={}M{huge}{node}", request.memory_mib)
}

fn control(side: Side, request: &PairRequest) -> String {
    format!(
        "-chardev socket,id=ctl,path='{}/{}.ctl',server=on,wait=off -device virtio-serial-pci \
         -device virtserialport,chardev=ctl,name={CONTROL_PORT}",
        request.folder, side
    )
}

fn network(side: Side, request: &PairRequest) -> Vec<(&'static str, String)> {
    let card = format!("-device virtio-net-pci,netdev=net,mac={},romfile=", mac(side));
    let tap = |vhost| {
        let tap = tap_name(side);
        format!("-netdev tap,id=net,ifname={tap},script=no,downscript=no,vhost={vhost} {card}")
    };
    let wire = || {
        let (own, other) = (side, side.other());
        let folder = &request.folder;
        format!(
            "-netdev dgram,id=net,local.type=unix,local.path='{folder}/{own}.net',\
             remote.type=unix,remote.path='{folder}/{other}.net' {card}"
        )
    };
    match &request.network {
        PairNetwork::Wire => vec![("datagrams to the other guest", wire())],
        PairNetwork::Vswitch => vec![("a port of the bridge, packets copied by QEMU", tap("off"))],
        PairNetwork::Vhost => {
            vec![("a port of the bridge, packets copied by the kernel", tap("on"))]
        }
        PairNetwork::Functions { .. } | PairNetwork::Devices { .. } => {
            vec![("the device that is passed through", "-device vfio-pci,host=$function".into())]
        }
        PairNetwork::SharedMemory => vec![
            ("datagrams to the other guest", wire()),
            (
                "the memory that both guests have",
                format!(
                    "-object memory-backend-file,id=shm,size={MEMORY_BYTES},share=on,mem-path='{}' \
                     -device ivshmem-plain,memdev=shm",
                    memory_path(request)
                ),
            ),
        ],
    }
}

/// Sets `$function` for a guest that a device is passed through to.
fn passed_function(side: Side, request: &PairRequest) -> String {
    match &request.network {
        PairNetwork::Functions { link, .. } => format!(
            "function=$(basename \"$(readlink /sys/class/net/{link}/device/virtfn{})\")",
            place_of(side)
        ),
        PairNetwork::Devices { addresses, .. } => format!("function={}", addresses[place_of(side)]),
        _ => String::new(),
    }
}

/// Pins each virtual CPU to its CPU and the other threads to theirs, by the names of the threads.
fn pin(side: Side, placement: &PairPlacement) -> String {
    let cpus = &placement.virtual_cpus[place_of(side)];
    if cpus.is_empty() {
        return "# The host has too few cores to pin the virtual CPUs.".to_string();
    }
    let list = |cpus: &[u32]| cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let cases: String = (0..)
        .zip(cpus)
        .map(|(number, cpu)| format!("        'CPU {number}/'*) cpus={cpu} ;;\n"))
        .collect();
    format!(
        "sleep 1\nfor thread in /proc/\"$qemu\"/task/*; do\n    case $(cat \"$thread/comm\") in\n\
         {cases}        *) cpus={} ;;\n    esac\n    \
         taskset -pc \"$cpus\" \"$(basename \"$thread\")\"\ndone",
        list(&placement.others)
    )
}
