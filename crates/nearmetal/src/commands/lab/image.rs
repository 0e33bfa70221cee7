//! `nearmetal lab image`: the file system of guests.

use std::path::PathBuf;

use anyhow::Result;
use nm_lab::environment::GuestParts;
use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, FailureKind, GuestSpec};
use nm_vm::image::ImageEntry;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::format::Format;
use crate::cli::lab::image::LabImageArgs;
use crate::document::Document;
use crate::exit::Exit;
use crate::output;

/// What a guest is made of.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImageDocument {
    /// Release of the kernel.
    kernel: String,
    /// File of the kernel.
    kernel_image: PathBuf,
    /// Size of the file system.
    bytes: usize,
    /// SHA-256 of this program, which is `/init`.
    program_sha256: String,
    /// Modules in the order of loading.
    modules: Vec<String>,
    files: Vec<FileDocument>,
}

/// A file of the file system.
#[derive(Debug, Serialize, JsonSchema)]
struct FileDocument {
    path: String,
    bytes: u64,
}

impl Document for ImageDocument {
    const NAME: &'static str = "guest-image";
}

pub fn run(args: &LabImageArgs) -> Result<Exit> {
    let spec = GuestSpec { kernel: args.kernel.clone(), ..GuestSpec::default() };
    let parts = GuestParts::of(EnvironmentKind::VmSwitch, &spec)
        .map_err(|reason| Failure::new(FailureKind::NotAvailable, reason.to_string()))?;
    let entries = parts.image.list();
    match args.format.format {
        Format::Json => {
            let file = |one: &ImageEntry| FileDocument { path: one.path.clone(), bytes: one.bytes };
            output::json(&ImageDocument {
                kernel: parts.kernel.release.clone(),
                kernel_image: parts.kernel.image.clone(),
                bytes: parts.image.bytes.len(),
                program_sha256: parts.image.program_sha256.clone(),
                modules: parts.image.modules.clone(),
                files: entries.iter().map(file).collect(),
            })?;
        }
        Format::Text => {
            let mut text = format!(
                "kernel {} ({})\nimage of {} bytes; /init is this program, SHA-256 {}\n\
                 modules in the order of loading: {}\n",
                parts.kernel.release,
                parts.kernel.image.display(),
                parts.image.bytes.len(),
                parts.image.program_sha256,
                parts.image.modules.join(" "),
            );
            for one in entries {
                text += &format!("{:>10}  {}\n", one.bytes, one.path);
            }
            output::text(&text)?;
        }
    }
    Ok(Exit::Pass)
}
