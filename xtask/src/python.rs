//! Programs of PyPI that look at what nearmetal makes, each with a folder of its own. Where PyPI
//! does not answer, what needs them says that it was not run.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

/// Packages of one folder, in versions that are known to work.
#[derive(Debug, Clone, Copy)]
pub struct Tools {
    /// Their folder in `target/peers`.
    folder: &'static str,
    /// Words for pip.
    packages: &'static str,
}

/// A decoder of ITCH.
pub const ITCHFEED: Tools = Tools { folder: "itchfeed", packages: "itchfeed==1.6.4" };

/// An initiator of FIX.
pub const ASYNCFIX: Tools = Tools { folder: "asyncfix", packages: "asyncfix==1.0.1" };

/// The published schemas of Kubernetes.
pub const KUBERNETES: Tools =
    Tools { folder: "kubernetes-validate", packages: "kubernetes-validate==1.37.0" };

/// Ansible and its linter.
pub const ANSIBLE: Tools =
    Tools { folder: "ansible", packages: "ansible-core==2.19.14 ansible-lint==26.10.1" };

impl Tools {
    /// Installs them, unless it was done before: the folder of programs, or `None` if PyPI does not
    /// answer.
    pub fn programs(self) -> Result<Option<PathBuf>> {
        let folder = shell::root().join("target/peers").join(self.folder);
        let programs = folder.join("bin");
        let python = programs.join("python3");
        if !python.exists() {
            shell::run(&format!("python3 -m venv {}", folder.display()))?;
        }
        let install = format!("{} -m pip -q install {}", python.display(), self.packages);
        Ok(shell::output(&install).is_ok_and(|(_, is_ok)| is_ok).then_some(programs))
    }

    /// Runs a command that finds the folder of programs in a variable, or says that it was not run.
    pub fn check(self, what: &str, variable: &str, line: &str) -> Result<()> {
        match self.programs()? {
            Some(programs) => shell::run_with(line, &[(variable, &programs.to_string_lossy())]),
            None => {
                println!("{what}: NOT RUN, because PyPI does not answer");
                Ok(())
            }
        }
    }
}
