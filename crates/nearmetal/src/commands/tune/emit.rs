//! `nearmetal tune emit`: files for other tools, in a folder of the user's.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::Result;
use nm_tune::emit::{Author, Emitted, Kind, emit};

use super::session;
use crate::cli::tune::{EmitArgs, EmitKind};
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &EmitArgs) -> Result<Exit> {
    let machine = session::machine(args.root.root.as_deref())?;
    let selection = session::selection(&args.selection);
    let steps = session::steps(&selection, &machine)?;
    let kind = match args.kind {
        EmitKind::Tuned => Kind::Tuned,
        EmitKind::Sysctl => Kind::Sysctl,
        EmitKind::Systemd => Kind::Systemd,
        EmitKind::Grub => Kind::Grub,
        EmitKind::Cpuset => Kind::Cpuset,
    };
    let author = Author {
        version: env!("CARGO_PKG_VERSION").to_string(),
        program: std::env::current_exe()?.to_string_lossy().into_owned(),
    };
    let files = emit(kind, &steps, &selection, &machine, &author)
        .map_err(|error| Stop::usage(error.to_string()))?;
    // None is written if one is there already.
    if let Some(file) = files.iter().find(|file| args.out.join(&file.path).exists()) {
        return Err(exists(&args.out.join(&file.path)));
    }
    for file in &files {
        write(&args.out, file)?;
        output::data(&format!("{}\n", args.out.join(&file.path).display()))?;
    }
    output::message("nothing is installed; the head of each file says how, and how to remove it");
    Ok(Exit::Pass)
}

fn exists(path: &Path) -> anyhow::Error {
    let path = path.display();
    Stop::with(Exit::Conflict, format!("{path} exists; remove it, or name another folder"))
}

fn write(folder: &Path, file: &Emitted) -> Result<()> {
    let path = folder.join(&file.path);
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::AlreadyExists => exists(&path),
        _ => Stop::with(Exit::Environment, format!("cannot write {}: {error}", path.display())),
    };
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).create(parent).map_err(failed)?;
    }
    let mut out = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
    out.write_all(file.text.as_bytes()).map_err(failed)
}
