//! `nearmetal generate`: configurations for a latency-critical guest of this host.

use std::path::Path;

use anyhow::Result;
use nm_generate::openstack::{self, Part};
use nm_generate::{PageSize, PlaceError, Placement, Request, libvirt};
use nm_sys::complete_file;

use crate::cli::generate::{GenerateCommand, GuestArgs, OpenstackPart, PageArg};
use crate::exit::{Exit, Stop};
use crate::output;

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
    }
    Ok(Exit::Pass)
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
