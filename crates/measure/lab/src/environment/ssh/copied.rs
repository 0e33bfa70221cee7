//! This program, copied to a host for the time of a run.

use std::path::Path;

use nm_model::hosts::Destination;
use nm_model::{Failure, FailureKind};
use nm_vm::elf::loadable_part;
use thiserror::Error;

/// What the kernel and the dynamic linker use of a program.
pub struct Copied {
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Copied {
    /// That of a program's file.
    pub fn of(program: &Path) -> Result<Copied, Failure> {
        let failed = |why: String| {
            let message = format!("cannot read this program's own file: {why}");
            Failure::new(FailureKind::System, message)
        };
        let all = std::fs::read(program).map_err(|error| failed(error.to_string()))?;
        let bytes = loadable_part(&all).map_err(|error| failed(error.to_string()))?;
        Ok(Copied { bytes })
    }
}

/// Why a host cannot execute the copy.
#[derive(Debug, Error)]
pub enum CopyError {
    /// Its temporary folder holds no programs.
    #[error(
        "host {host} executes no program in its temporary folder ({output}), which may be mounted \
         noexec; install nearmetal there and name its path in `program` of the plan"
    )]
    NotExecuted {
        /// Destination of ssh.
        host: String,
        /// Why.
        output: String,
    },
    /// It has no libraries for it.
    #[error(
        "host {host} has no C library for a copy of this program ({output}); build nearmetal \
         there and name its path in `program` of the plan, or start the static build here"
    )]
    NoLibrary {
        /// Destination of ssh.
        host: String,
        /// Why.
        output: String,
    },
}

/// Why the copy was not executed, from its exit code and the lines of its error output; none if it
/// was.
pub fn error<'a>(
    host: &Destination,
    code: Option<i32>,
    lines: impl DoubleEndedIterator<Item = &'a str> + Clone,
) -> Option<CopyError> {
    let is_of_linker =
        |line: &str| line.contains("GLIBC_") || line.contains("loading shared libraries");
    let of_linker = lines.clone().find(|line| is_of_linker(line));
    let output = of_linker.or_else(|| lines.clone().next_back()).unwrap_or("nothing").to_string();
    let host = host.to_string();
    match code? {
        126 => Some(CopyError::NotExecuted { host, output }),
        // The kernel does not find the program's dynamic linker.
        127 => Some(CopyError::NoLibrary { host, output }),
        _ if of_linker.is_some() => Some(CopyError::NoLibrary { host, output }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_not_executed_has_a_reason() {
        let host: Destination = "h1".parse().unwrap();
        let of = |code, text: &str| error(&host, Some(code), text.lines());
        let text = of(126, "sh: 1: /proc/self/fd/4: Permission denied").unwrap().to_string();
        assert!(text.contains("(sh: 1: /proc/self/fd/4: Permission denied), which may"), "{text}");
        let old = "/proc/self/fd/4: /lib/libc.so.6: version `GLIBC_2.99' not found";
        for (code, line) in [(127, "sh: 1: /proc/self/fd/4: not found"), (1, old)] {
            let text = of(code, line).unwrap().to_string();
            assert!(text.contains("no C library") && text.contains(line), "{text}");
        }
        assert!(of(4, "the controller was silent for 30 s").is_none());
        assert!(error(&host, None, "".lines()).is_none());
    }

    #[test]
    fn the_copy_of_a_program_is_no_larger_than_its_file() {
        let own = std::env::current_exe().unwrap();
        let bytes = Copied::of(&own).unwrap().bytes.len() as u64;
        assert!(bytes > 0 && bytes <= own.metadata().unwrap().len());
        assert!(Copied::of(Path::new("/etc/passwd")).is_err());
    }
}
