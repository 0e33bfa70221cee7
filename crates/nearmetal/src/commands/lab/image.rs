//! `nearmetal lab image`: the file system of guests.

use anyhow::Result;
use nm_lab::environment::GuestParts;
use nm_model::plan::EnvironmentKind;
use nm_model::{Failure, FailureKind, GuestSpec};
use serde_json::json;

use crate::cli::format::Format;
use crate::cli::lab::image::LabImageArgs;
use crate::exit::Exit;
use crate::output;

pub fn run(args: &LabImageArgs) -> Result<Exit> {
    let spec = GuestSpec { kernel: args.kernel.clone(), ..GuestSpec::default() };
    let parts = GuestParts::of(EnvironmentKind::VmSwitch, &spec)
        .map_err(|reason| Failure::new(FailureKind::NotAvailable, reason.to_string()))?;
    let entries = parts.image.list();
    match args.format.format {
        Format::Json => {
            let files = entries.iter().map(|one| json!({"path": one.path, "bytes": one.bytes}));
            output::json(&json!({
                "kernel": parts.kernel.release,
                "kernel_image": parts.kernel.image,
                "bytes": parts.image.bytes.len(),
                "program_sha256": parts.image.program_sha256,
                "modules": parts.image.modules,
                "files": files.collect::<Vec<_>>(),
            }))?;
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
            output::data(&text)?;
        }
    }
    Ok(Exit::Pass)
}
