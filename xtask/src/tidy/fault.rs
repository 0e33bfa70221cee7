//! What a check reports: one fault at one line, with what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::tidy::house;

/// The checks of `cargo xtask tidy`, in the order in which their faults are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    Text,
    Functions,
    Imports,
    Layers,
    Unused,
    Licences,
    Guarantees,
    Mutations,
    Roles,
    Sentences,
}

impl Check {
    pub const ALL: [Check; 10] = [
        Check::Text,
        Check::Functions,
        Check::Imports,
        Check::Layers,
        Check::Unused,
        Check::Licences,
        Check::Guarantees,
        Check::Mutations,
        Check::Roles,
        Check::Sentences,
    ];

    /// The name by which the command line and the faults call it.
    pub fn name(self) -> &'static str {
        match self {
            Check::Text => "text",
            Check::Functions => "functions",
            Check::Imports => "imports",
            Check::Layers => "layers",
            Check::Unused => "unused",
            Check::Licences => "licences",
            Check::Guarantees => "guarantees",
            Check::Mutations => "mutations",
            Check::Roles => "roles",
            Check::Sentences => "sentences",
        }
    }

    pub fn parse(name: &str) -> Option<Check> {
        Check::ALL.into_iter().find(|check| check.name() == name)
    }
}

/// One violated rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    pub check: Check,
    /// Relative to the root of the workspace.
    pub file: PathBuf,
    pub line: usize,
    /// What is wrong and what to do.
    pub text: String,
}

impl Fault {
    pub fn new(check: Check, file: &Path, line: usize, text: impl Into<String>) -> Fault {
        Fault { check, file: file.to_path_buf(), line, text: text.into() }
    }

    /// The crate whose folder holds the file; `None` for files of the root.
    pub fn crate_name(&self) -> Option<String> {
        house::owner(&self.file)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, check) = (self.file.display(), self.check.name());
        write!(f, "{file}:{}: {} [{check}]", self.line, self.text)
    }
}
