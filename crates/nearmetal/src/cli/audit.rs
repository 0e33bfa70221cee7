//! Options of `audit`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nm_model::Severity;

use super::firmware::BmcArgs;
use super::shared::{CpusArgs, ROOT};

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Audit this snapshot, which `--save` wrote, in place of this machine.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["root", "save", "record", "active"])]
    pub snapshot: Option<PathBuf>,
    #[arg(long, value_name = "DIR", help = ROOT, conflicts_with_all = ["active", "record"])]
    pub root: Option<PathBuf>,
    /// Write the snapshot to this file as well, to be audited elsewhere.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Write the files that the checks read into this new folder, for `--root` elsewhere. Names and
    /// addresses of the machine, of its programs and of its control groups are replaced; look
    /// through the folder before you give it away.
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// A snapshot of a guest of this host: adds what only both together can tell.
    #[arg(long, value_name = "FILE")]
    pub guest: Option<PathBuf>,
    #[command(flatten)]
    pub bmc: BmcArgs,
    /// Measure as well: cost of exits to the hypervisor and of clocks, CPUs that share a core.
    /// Takes a few seconds of CPU time.
    #[arg(long)]
    pub active: bool,
    #[command(flatten)]
    pub cpus: CpusArgs,
    /// Network links of the workload. Without it all devices that are up.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub link: Vec<String>,
    /// The workload's process: its threads, memory and limits are looked at, too.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Time between the two samples of counters, s; 0 for one sample.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub interval: f64,
    /// Exit code 1 if a finding has at least this severity: info, low, medium, high, critical; 3 if
    /// more such checks are undecided, for want of evidence, than decided.
    #[arg(long, alias = "fail-on", value_name = "SEVERITY")]
    pub fail_at: Option<Severity>,
    /// Form of what is written to stdout.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AuditFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For a merge request or a job summary.
    Markdown,
    /// For code scanning, SARIF 2.1.0.
    Sarif,
    /// For test reports of CI systems.
    Junit,
    /// One page that needs nothing else.
    Html,
}
