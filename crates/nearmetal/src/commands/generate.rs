//! `nearmetal generate`: configurations for a latency-critical guest of this host, and files for
//! the engines that run nearmetal on many hosts.

use std::fs;
use std::path::Path;

use anyhow::Result;
use nm_generate::engine::slurm::{self, SlurmRequest};
use nm_generate::engine::systemd::{self, Every, SystemdRequest};
use nm_generate::engine::{EngineFile, NodePlan, PairsName};
use nm_generate::openstack::{self, Part};
use nm_generate::{PageSize, PlaceError, Placement, Request, libvirt};
use nm_sys::complete_file;

use crate::cli::generate::{
    EveryArg, GenerateCommand, GuestArgs, OpenstackPart, PageArg, SlurmArgs, SystemdArgs,
};
use crate::exit::{Exit, Stop};
use crate::output;

/// Mode of scripts.
const MODE_PROGRAM: u32 = 0o755;

pub fn run(command: &GenerateCommand) -> Result<Exit> {
    match command {
        GenerateCommand::Openstack { guest, part } => {
            let request = request(guest, None)?;
            let parts = match part {
                None => Part::ALL.to_vec(),
                Some(OpenstackPart::Compute) => vec![Part::Compute],
                Some(OpenstackPart::Controller) => vec![Part::Controller],
                Some(OpenstackPart::Flavor) => vec![Part::Flavor],
            };
            let text = openstack::text(&place(guest, &request)?, &request, &parts);
            write(guest.out.as_deref(), &text)?;
        }
        GenerateCommand::Libvirt { guest, disk } => {
            let request = request(guest, disk.clone())?;
            let text = libvirt::domain(&place(guest, &request)?, &request);
            write(guest.out.as_deref(), &text)?;
        }
        GenerateCommand::Slurm(args) => {
            let SlurmArgs { engine, .. } = args;
            let node = NodePlan::new(args.limit.clone(), engine.baseline.clone());
            let request = SlurmRequest {
                name: engine.name.clone(),
                nodes: args.nodes,
                partition: args.partition.clone(),
                program: engine.program.clone(),
                plan: args.plan.clone(),
                pairs: PairsName::of(&args.pairs),
                node: node.map_err(|fault| Stop::usage(fault.to_string()))?,
                configuration: args.slurm_conf.clone(),
            };
            write_files(&engine.out, &slurm::files(&request))?;
        }
        GenerateCommand::Systemd(args) => {
            let SystemdArgs { engine, .. } = args;
            let request = SystemdRequest {
                name: engine.name.clone(),
                every: match args.every {
                    EveryArg::Hour => Every::Hour,
                    EveryArg::Day => Every::Day,
                    EveryArg::Week => Every::Week,
                },
                program: engine.program.clone(),
                plan: args.plan.clone(),
                baseline: engine.baseline.clone(),
            };
            write_files(&engine.out, &systemd::files(&request))?;
        }
    }
    Ok(Exit::Pass)
}

/// Writes the files of an engine into a new or an empty folder; none is written over.
fn write_files(folder: &Path, files: &[EngineFile]) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| output::file_error(folder, &error))?;
    for EngineFile { name, text, is_program } in files {
        let path = folder.join(name);
        let mode = if *is_program { MODE_PROGRAM } else { complete_file::MODE_PUBLIC };
        complete_file::create(&path, text.as_bytes(), mode)
            .map_err(|error| output::file_error(&path, &error))?;
        output::message(&format!("wrote {}", path.display()));
    }
    Ok(())
}

fn request(guest: &GuestArgs, disk: Option<String>) -> Result<Request> {
    let usage = |error: nm_generate::RequestError| Stop::usage(error.to_string());
    let request = Request {
        name: guest.name.clone(),
        vcpus: guest.vcpus,
        memory_bytes: nm_generate::parse_memory(&guest.memory).map_err(usage)?,
        nic: guest.nic.clone(),
        page_size: match guest.page {
            PageArg::Mib2 => PageSize::Mib2,
            PageArg::Gib1 => PageSize::Gib1,
        },
        dedicated_cores: guest.dedicated_cores,
        realtime: guest.realtime,
        disk,
    };
    request.check().map_err(usage)?;
    Ok(request)
}

fn place(guest: &GuestArgs, request: &Request) -> Result<Placement> {
    if !guest.root.is_dir() {
        let root = guest.root.display();
        return Err(Stop::usage(format!("--root: there is no folder {root}")));
    }
    let layout = nm_generate::read(&guest.root);
    let placement = nm_generate::place(&layout, request).map_err(|error| {
        let exit = match error {
            PlaceError::Request(_)
            | PlaceError::NoCpus
            | PlaceError::NoSuchNic { .. }
            | PlaceError::DedicatedCores { .. } => Exit::Usage,
            _ => Exit::Environment,
        };
        Stop::with(exit, error.to_string())
    })?;
    for reason in &placement.reasons {
        output::message(&format!("CPUs: {reason}"));
    }
    Ok(placement)
}

fn write(out: Option<&Path>, text: &str) -> Result<()> {
    let Some(path) = out else { return output::data(text) };
    complete_file::create(path, text.as_bytes(), complete_file::MODE_PUBLIC)
        .map_err(|error| output::file_error(path, &error))
}
