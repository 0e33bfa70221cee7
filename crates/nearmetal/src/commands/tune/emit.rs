//! `nearmetal tune emit`: files for other tools, in a folder of the user's.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nm_sys::complete_file;
use nm_tune::emit::{Author, Emitted, Kind, emit};

use super::session;
use crate::cli::tune::{EmitArgs, EmitKind};
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &EmitArgs) -> Result<Exit> {
    let machine = session::machine(args.root.root.as_deref())?;
    let selection = session::selection(&args.selection);
    let steps = session::steps(&selection, &machine)?;
    session::check_available(&selection, &steps)?;
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
        return Err(output::file_error(
            &args.out.join(&file.path),
            &ErrorKind::AlreadyExists.into(),
        ));
    }
    write(&args.out, &files)?;
    for file in &files {
        output::text(&format!("{}\n", args.out.join(&file.path).display()))?;
    }
    output::message("nothing is installed; the head of each file says how, and how to remove it");
    Ok(Exit::Pass)
}

fn write(folder: &Path, files: &[Emitted]) -> Result<()> {
    let failed = |path: &Path, error: &std::io::Error| output::file_error(path, error);
    let files: Vec<(PathBuf, &[u8])> =
        files.iter().map(|file| (folder.join(&file.path), file.text.as_bytes())).collect();
    for parent in files.iter().filter_map(|(path, _)| path.parent()) {
        DirBuilder::new().recursive(true).create(parent).map_err(|error| failed(parent, &error))?;
    }
    complete_file::create_all(&files).map_err(|(path, error)| failed(&path, &error))
}
