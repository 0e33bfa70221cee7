//! `nearmetal lab export`: the same environment for the user's own stack.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use nm_generate::{HostLayout, NicFunction, PairNetwork, PairRequest, libvirt_pair, place_pair};
use nm_sys::hostfiles::HostFiles;

use crate::cli::lab::export::{ExportArgs, ExportEnvironment, ExportStack};
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &ExportArgs) -> Result<Exit> {
    if !args.root.is_dir() {
        return Err(Stop::usage(format!("--root: there is no folder {}", args.root.display())));
    }
    let layout = nm_generate::read(&args.root);
    let network = network(args, &layout)?;
    let kernel = args.kernel.clone().map_or_else(|| own_kernel(&args.root), Ok)?;
    let folder = std::path::absolute(&args.out)?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let request = PairRequest {
        network,
        cpus: args.cpus,
        memory_mib: args.memory_mib,
        kernel: text(&folder.join("vmlinuz")),
        initrd: text(&folder.join("initrd")),
        folder: text(&folder),
    };
    request.check().map_err(|error| Stop::usage(error.to_string()))?;
    for source in [&kernel, &args.initrd] {
        if !source.is_file() {
            return Err(Stop::usage(format!("there is no file {}", source.display())));
        }
    }
    make_folder(&folder)?;
    let placement = place_pair(&layout, &request);
    let files = match args.stack {
        ExportStack::Libvirt => libvirt_pair::files(&placement, &request),
    };
    copy(&kernel, &folder.join("vmlinuz"))?;
    copy(&args.initrd, &folder.join("initrd"))?;
    for (name, text) in files {
        let path = folder.join(&name);
        File::create_new(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| failed(&path, &error))?;
        output::message(&format!("written: {}", path.display()));
    }
    for note in &placement.notes {
        output::message(note);
    }
    Ok(Exit::Pass)
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

/// The image of the host's own kernel.
fn own_kernel(root: &Path) -> Result<PathBuf> {
    let files = HostFiles::new(root);
    let release = files.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let places =
        [format!("/boot/vmlinuz-{release}"), format!("/usr/lib/modules/{release}/vmlinuz")];
    let found = places.iter().find(|path| files.exists(path)).map(|path| files.path(path));
    found.ok_or_else(|| {
        Stop::usage(format!("there is no {}: name a kernel image with --kernel", places[0]))
    })
}

fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    let mut entries = fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => {
            let text = format!("{} is not empty: name a new folder", folder.display());
            Err(Stop::with(Exit::Conflict, text))
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(|_| ()).map_err(|error| failed(to, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let exit = match error.kind() {
        ErrorKind::AlreadyExists => Exit::Conflict,
        _ => Exit::Environment,
    };
    Stop::with(exit, format!("{} cannot be written: {error}", path.display()))
}
