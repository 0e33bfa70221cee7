//! Options that several commands have: each is declared once, so that it has one meaning and one
//! text. Options that stand among others of a command take their text from the constants.

use std::path::PathBuf;

use clap::Args;
use nm_model::Target;

use super::cpu_list::CpuList;

/// `--out` of a folder.
pub const OUT: &str = "Folder for what is written, which is created";

/// `--root`.
pub const ROOT: &str =
    "Files below DIR in place of the machine's /proc, /sys and the like: a recorded tree";

/// `--run-name`.
pub const RUN_NAME: &str =
    "Name of the run, which `undo --run-name` finds: letters, digits and hyphens";

/// `--kernel`.
pub const KERNEL: &str = "Kernel of the guests: an image, a folder with boot/ and lib/modules/, or \
                          a Debian package [default: $NEARMETAL_GUEST_KERNEL, or the host's own]";

/// `--rounds` where targets need five.
pub const ROUNDS: &str =
    "Rounds; five or more give intervals and verdicts [default: 1, or 5 with --target]";

/// `--plan`.
pub const PLAN: &str = "Built-in plan (see `nearmetal plans`), a file, or `-` for stdin; with \
                        `:NAME` a part that it defines";

/// `--controller`.
pub const CONTROLLER: &str = "Socket of a `nearmetal controller` on this machine: hosts are the \
                              agents that have connected to it, by their names, and not reached \
                              by ssh";

/// `--connect`.
pub const CONNECT: &str =
    "The controller of agents: a name or an address; its port is 4850 if it is not given";

/// `--pin`.
pub const PIN: &str = "The controller's key: 64 digits, which the controller prints";

/// `--token-file`.
pub const TOKEN_FILE: &str = "File with the token that lets agents enter: one line of 16 to 256 \
                              characters, which only its owner may read";

/// `--baseline`.
pub const BASELINE: &str = "Accepted runs of this machine, a file or folder of `baseline save`, to \
                            test the run against; the exit code of `qualify` is the worse one of \
                            its targets and of this gate";

/// `--run-deviation`.
pub const RUN_DEVIATION: &str =
    "Standard deviation between runs of one system, such as `3%`; 5 % is assumed without it";

/// `--only`.
pub const ONLY: &str =
    "Only rows that match one of these names of each kind: environments, stacks, probes";

#[derive(Debug, Args)]
pub struct TargetArgs {
    /// Limit to judge by, such as "p99 < 20us at size<=1024", "throughput >= 9 Gb/s" or, of the
    /// processor, "time-lost < 0.001"; may be repeated.
    #[arg(long, value_name = "TARGET")]
    pub target: Vec<Target>,
}

#[derive(Debug, Args)]
pub struct CpusArgs {
    /// CPUs to use or to examine, such as `2-5,8`; all by default, or those that are isolated.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
}

impl CpusArgs {
    /// The CPUs; none if all are meant.
    pub fn list(&self) -> Vec<u32> {
        self.cpus.as_ref().map(|list| list.0.clone()).unwrap_or_default()
    }
}

#[derive(Debug, Args)]
pub struct AffinityArgs {
    /// CPUs of the client and of the server, such as `1;2` or `1,2;0`.
    #[arg(long, value_name = "C;S")]
    pub affinity: Option<String>,
}

#[derive(Debug, Args)]
pub struct OutArgs {
    #[arg(long, value_name = "DIR", help = OUT)]
    pub out: Option<PathBuf>,
}
