//! `nearmetal lab export`: the same environment for the user's own stack.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nm_generate::{
    HostLayout, NicFunction, PairNetwork, PairRequest, libvirt_pair, place_pair, qemu_pair,
};
use nm_lab::environment::guest_kernel;
use nm_model::{GuestSpec, Side};
use nm_sys::complete_file;
use nm_vm::boot::{BootSettings, Cidr};
use nm_vm::image::{Image, ImageError, ImageParts};
use nm_vm::kernel::GuestKernel;
use nm_vm::network::hardware_address;

use crate::cli::lab::export::{ExportArgs, ExportEnvironment, ExportStack};
use crate::exit::{Exit, Stop};
use crate::output;

/// Names of the guests' kernel and of their file system in the folder.
const KERNEL: &str = "vmlinuz";
const INITRD: &str = "initrd";

pub fn run(args: &ExportArgs) -> Result<Exit> {
    if !args.root.is_dir() {
        return Err(Stop::usage(format!("--root: there is no folder {}", args.root.display())));
    }
    let layout = nm_generate::read(&args.root);
    let network = network(args, &layout)?;
    let folder = std::path::absolute(&args.out)?;
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let request = PairRequest {
        command_lines: [Side::Client, Side::Server].map(|side| command_line(side, &network)),
        network,
        cpus: args.vcpus,
        memory_mib: args.memory_mib,
        kernel: text(folder.join(KERNEL)),
        initrd: text(folder.join(INITRD)),
        folder: text(folder.clone()),
    };
    request.check().map_err(|error| Stop::usage(error.to_string()))?;
    let environment =
        |error: &dyn std::fmt::Display| Stop::with(Exit::Environment, error.to_string());
    let kernel = guest_kernel(&GuestSpec { kernel: args.kernel.clone(), ..GuestSpec::default() })
        .map_err(|error| environment(&error))?;
    let image = image(&kernel, &request.network).map_err(|error| environment(&error))?;
    make_folder(&folder)?;
    let placement = place_pair(&layout, &request);
    let files = match args.stack {
        ExportStack::Libvirt => libvirt_pair::files(&placement, &request),
        ExportStack::Qemu => qemu_pair::files(&placement, &request),
    };
    let kernel_bytes = fs::read(&kernel.image).map_err(|error| {
        environment(&format!("{} cannot be read: {error}", kernel.image.display()))
    })?;
    let mut all: Vec<(PathBuf, &[u8])> =
        vec![(folder.join(KERNEL), &kernel_bytes), (folder.join(INITRD), &image.bytes)];
    all.extend(files.iter().map(|(name, text)| (folder.join(name), text.as_bytes())));
    complete_file::create_all(&all).map_err(|(path, error)| output::file_error(&path, &error))?;
    let begin_with = match args.stack {
        ExportStack::Libvirt => "see commands.txt there",
        ExportStack::Qemu => "run connect.sh, then client.sh and server.sh, at last disconnect.sh",
    };
    output::message(&format!("written: {}; {begin_with}", folder.display()));
    for note in &placement.notes {
        output::message(note);
    }
    Ok(Exit::Pass)
}

/// The guests' file system: this program, and the modules that their devices need.
fn image(kernel: &GuestKernel, network: &PairNetwork) -> Result<Image, ImageError> {
    let parts = ImageParts::of_this_program(kernel)?;
    let is_passed = matches!(network, PairNetwork::Functions { .. } | PairNetwork::Devices { .. });
    Image::build(&if is_passed { parts.with_pass_through() } else { parts })
}

/// The kernel's command line of one guest. A device that is passed through itself keeps its own
/// hardware address, and is the guest's only one.
fn command_line(side: Side, network: &PairNetwork) -> String {
    let at = usize::from(side == Side::Server);
    let v4 = IpAddr::from([10, 77, 0, at as u8 + 1]);
    let v6 = IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, at as u16 + 1]);
    let address = |address, prefix_bits| Cidr { address, prefix_bits };
    let has_own_mac = matches!(network, PairNetwork::Devices { .. });
    let settings = BootSettings {
        addresses: vec![address(v4, 24), address(v6, 64)],
        mac: (!has_own_mac).then(|| hardware_address(side)),
        ..BootSettings::new(side)
    };
    format!("console=ttyS0 quiet panic=-1 {}", settings.words().join(" "))
}

/// What connects the guests, with the devices of the host.
fn network(args: &ExportArgs, layout: &HostLayout) -> Result<PairNetwork> {
    let network = match args.environment {
        ExportEnvironment::Wire => PairNetwork::Wire,
        ExportEnvironment::Vswitch => PairNetwork::Vswitch,
        ExportEnvironment::Vhost => PairNetwork::Vhost,
        ExportEnvironment::SharedMemory => PairNetwork::SharedMemory,
        ExportEnvironment::Sriov => return devices(args, layout),
    };
    match args.nic.is_empty() {
        true => Ok(network),
        false => Err(Stop::usage("--nic is for the environment sriov only")),
    }
}

fn devices(args: &ExportArgs, layout: &HostLayout) -> Result<PairNetwork> {
    let find = |asked: &String| {
        let is_asked =
            |nic: &&nm_generate::Nic| asked.parse() == Ok(nic.address) || nic.names.contains(asked);
        let known: Vec<String> = layout.nics.iter().map(|nic| nic.address.to_string()).collect();
        let unknown = || {
            let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
            let asked: String = asked.chars().take(80).collect();
            Stop::usage(format!(
                "--nic: there is no network device {asked} on PCI; there are: {known}"
            ))
        };
        layout.nics.iter().find(is_asked).ok_or_else(unknown)
    };
    match args.nic.as_slice() {
        [one] => {
            let nic = find(one)?;
            let (Some(link), NicFunction::Parent { .. }) = (nic.names.first(), &nic.function)
            else {
                let text = "--nic: no virtual functions of this device can be made; name two \
                            devices that are passed through themselves";
                return Err(Stop::usage(text));
            };
            Ok(PairNetwork::Functions { link: link.clone(), node: nic.node })
        }
        [client, server] => {
            let (client, server) = (find(client)?, find(server)?);
            if client.address == server.address {
                return Err(Stop::usage("--nic: each guest needs a device of its own"));
            }
            let addresses = [client.address, server.address];
            Ok(PairNetwork::Devices { addresses, node: client.node })
        }
        other => {
            Err(Stop::usage(format!("sriov takes --nic once or twice, not {} times", other.len())))
        }
    }
}

fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| output::file_error(folder, &error))?;
    let mut entries = fs::read_dir(folder).map_err(|error| output::file_error(folder, &error))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => {
            let text = format!("{} is not empty: name a new folder", folder.display());
            Err(Stop::with(Exit::Conflict, text))
        }
    }
}
