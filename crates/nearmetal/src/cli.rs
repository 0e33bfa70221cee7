//! The command tree: commands and their options, help and examples. Completions and the man page
//! are generated from it.

pub mod accel;
pub mod access;
pub mod audit;
pub mod backup;
pub mod baseline;
pub mod certificate;
pub mod compare;
pub mod compute;
pub mod controller;
pub mod cpu_list;
pub mod directions;
pub mod exchange;
pub mod firms;
pub mod firmware;
pub mod fleet;
pub mod format;
pub mod generate;
pub mod groups;
pub mod jitter;
pub mod lab;
#[cfg(test)]
mod named_commands_tests;
mod number;
#[cfg(test)]
mod option_tests;
mod percent;
pub mod server_address;
pub mod service;
pub mod shared;
mod span;
pub mod standalone;
pub mod tune;
pub mod watch;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use nm_model::attached::AttachedGuest;
use nm_model::hosts::HostSpec;

use self::accel::AccelArgs;
use self::audit::AuditArgs;
use self::baseline::{BaselineCommand, GateArgs};
use self::certificate::{CertifyArgs, VerifyCertificateArgs};
use self::compare::{CompareArgs, TrendArgs};
use self::compute::ComputeArgs;
use self::controller::{AgentArgs, ControllerArgs};
use self::exchange::ExchangeCommand;
use self::firmware::FirmwareCommand;
use self::fleet::FleetCommand;
use self::format::{ExtentArgs, FormatArgs, ShowArgs};
use self::generate::GenerateCommand;
use self::jitter::JitterArgs;
use self::lab::LabCommand;
use self::number::number;
use self::shared::{AffinityArgs, OUT};
use self::standalone::{PingpongArgs, RrArgs, StreamArgs};
use self::tune::TuneCommand;
use self::watch::WatchArgs;

#[derive(Debug, Parser)]
#[command(
    name = "nearmetal",
    version,
    about = "Tells whether a host, virtual machine, container or cloud can carry a \
             latency-critical workload",
    long_about = "Tells whether a host, virtual machine, container or cloud can carry a \
                  latency-critical workload: measures latency and throughput, judges them against \
                  targets and published runs, and writes one report.",
    after_help = "Start with: nearmetal qualify\n\n\
                  Exit codes: 0 pass · 1 a target failed or a regression · 2 usage or bad input · \
                  3 inconclusive · 4 an environment could not be made · 5 conflict · \
                  130 interrupted",
    propagate_version = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure, judge and report by a plan.
    #[command(after_help = "Examples:\n  nearmetal qualify\n  nearmetal qualify --plan full \
        --out results/today\n  nearmetal qualify --only netns,tcp-spin\n  \
        nearmetal qualify --plan quick:latency\n  \
        nearmetal qualify --plan my-plan.toml --dry-run\n  \
        sed 's/tcp-spin/udp-spin/' my-plan.toml | nearmetal qualify --plan -\n  \
        nearmetal qualify --quiet && deploy              by the exit code")]
    Qualify(QualifyArgs),
    /// What in the settings of this machine costs latency, with evidence and remedy.
    #[command(after_help = "Examples:\n  nearmetal audit\n  \
        nearmetal audit --cpus 2-3 --link eth0 --pid 4711\n  \
        nearmetal audit --save host.json                 on a machine without a way out\n  \
        nearmetal audit --snapshot host.json --format html > audit.html\n  \
        nearmetal audit --snapshot host.json --guest guest.json\n  \
        nearmetal audit --bmc host7-bmc --bmc-login login\n  \
        nearmetal audit --fail-at high --format sarif > audit.sarif\n\n\
        Nothing is changed, and nothing is opened for writing but the file of --save.")]
    Audit(AuditArgs),
    /// Ping-pong latency between two machines: half round trip.
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  \
        nearmetal pingpong server                      on one machine\n  \
        nearmetal pingpong tcp 192.0.2.1 --spin        on the other\n  \
        nearmetal pingpong tcp server-2 --spin --target 'p99 < 20us at size<=1024'\n  \
        nearmetal pingpong udp 192.0.2.1 --affinity '2;3' --sizes 64,256 --sfnt\n  \
        onload --profile=latency nearmetal pingpong tcp 192.0.2.1 --spin"
    )]
    Pingpong(PingpongArgs),
    /// Throughput of parallel flows between two machines.
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  \
        nearmetal stream server\n  nearmetal stream 192.0.2.1 --pattern 2-bi-2\n  \
        nearmetal stream 192.0.2.1 --as netperf --seconds 10 --repeat 10\n  \
        nearmetal stream 192.0.2.1 --target 'throughput >= 9.3 Gb/s'"
    )]
    Stream(StreamArgs),
    /// Request-response between two machines, open loop at a rate or closed loop.
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  \
        nearmetal rr server\n  nearmetal rr 192.0.2.1 --rate 10000\n  \
        nearmetal rr 192.0.2.1 --closed --sizes 1,1\n  \
        nearmetal rr 192.0.2.1:4811 --rate 1000 --target 'p99 < 200us' --target 'loss <= 0'"
    )]
    Rr(RrArgs),
    /// How fast this machine's processor works, alone and with all cores busy.
    #[command(
        args_conflicts_with_subcommands = true,
        long_about = "Does jobs on one core, on all cores, and with several threads on each core: \
            jobs a second, CPU time and real time of each, and the speed of each thread beside \
            that of one alone. A layout AxB is A threads on each of B cores; N stands for the \
            number of cores. `compute pairs` finds CPUs that share a core, also those that the \
            hypervisor hides.",
        after_help = "Examples:\n  nearmetal compute\n  \
            nearmetal compute --workload bc --layout 1x1,1xN,2xN --repeats 10\n  \
            nearmetal compute --workload pi,alu,memory --cpus 2-5 --out compute\n  \
            nearmetal compute pairs --cpus 0-3"
    )]
    Compute(ComputeArgs),
    /// How long spinning threads of this machine are interrupted, and by what.
    #[command(
        long_about = "A thread on each CPU does nothing but read the clock. Each time that it \
            could not for a while is a gap. The table says for each CPU how many gaps there were, \
            how long, and what took the time: other threads, interrupts, stolen time, or what is \
            below the operating system.",
        after_help = "Examples:\n  nearmetal jitter\n  \
            nearmetal jitter --cpus 2-5 --seconds 60 --out jitter\n  \
            nearmetal jitter --cpus 3 --threshold 1000 --format json\n  \
            nearmetal jitter --target 'max < 100us' --target 'time-lost < 0.001'"
    )]
    Jitter(JitterArgs),
    /// Run a program with its same-host TCP connections in shared memory.
    #[command(
        args_conflicts_with_subcommands = true,
        subcommand_negates_reqs = true,
        disable_help_subcommand = true,
        long_about = "Runs an unmodified, dynamically linked program with its TCP connections to \
            other accelerated programs of this host in shared memory instead of the kernel. What \
            cannot be accelerated stays on the kernel. The program keeps its process id; its exit \
            status is handed on.",
        after_help = "Examples:\n  nearmetal accel redis-server --port 6379\n  \
            nearmetal accel --stats redis-benchmark -p 6379 -n 100000\n  \
            nearmetal accel --policy accel.toml -- ./my-server\n  \
            nearmetal accel --profile latency ./gateway\n  \
            nearmetal accel explain -- ./my-server         would it be accelerated?\n  \
            nearmetal accel status\n  \
            nearmetal accel -- status                      a program of that name\n\n\
            Both ends must be accelerated and run as one user (or be of one --group).\n\n\
            Policy file (first rule that matches wins, else allow):\n  \
            [[rules]]\n  action = \"deny\"\n  ports = [22, \"8000-8099\"]     # of either end\n  \
            programs = [\"ssh*\"]          # every program if absent\n  \
            [spin_us]\n  redis-server = 20\n\n\
            Exit codes: the program's own, 128 + N if signal N ended it · 126 it cannot be \
            executed · 127 it is not there · 2 usage · 4 the accelerator's library is missing"
    )]
    Accel(AccelArgs),
    /// Compare two results: folders, result files, or `reference:NAME`.
    #[command(after_help = "Examples:\n  \
        nearmetal compare reference:deftech-e5-bm-ull reference:deftech-e5-vm-pf\n  \
        nearmetal compare before/ after/ --margin 5% --fail-on p99\n  \
        nearmetal compare before/ after/ --out comparison\n  \
        nearmetal compare result reference:deftech-hft-vm-pf --a-on netns/tcp-spin")]
    Compare(CompareArgs),
    /// Follow the figures of several results in the order of their start.
    #[command(after_help = "Examples:\n  \
        nearmetal trend results/*/\n  \
        nearmetal trend monday/ tuesday/ today/ --metric p99 --on 'netns/*' --out trend\n  \
        nearmetal trend monday/ tuesday/ today/ --fail-on p99 --margin 10%")]
    Trend(TrendArgs),
    /// Small trials for weeks: which figure changed, since when, and what changed just before.
    #[command(
        args_conflicts_with_subcommands = true,
        subcommand_negates_reqs = true,
        after_help = "Examples:\n  \
        nearmetal watch my-plan.toml --every 10m --keep watched\n  \
        nearmetal watch my-plan.toml --keep watched --once       for a timer\n  \
        nearmetal watch my-plan.toml --keep watched --on-alert 'logger \"$NEARMETAL_ALERT\"'\n  \
        nearmetal watch status watched\n  \
        nearmetal watch report watched --out watched.html\n\n\
        Exit codes of a watch: 0 no change for the worse · 1 a figure became worse · 2 usage · \
        3 the last trial failed · 5 another watch uses the folder · 130 interrupted"
    )]
    Watch(WatchArgs),
    /// Many hosts that ssh reaches: which of them, or which pair, stands out.
    #[command(
        subcommand,
        after_help = "Examples:\n  \
        nearmetal fleet run --hosts 'node[01-16]' --dry-run\n  \
        nearmetal fleet run --hosts rack.txt --out rack\n  \
        nearmetal fleet run --resume rack\n  \
        nearmetal fleet hunt --hosts offers.txt --keep 3"
    )]
    Fleet(FleetCommand),
    /// Accepted runs as small files, and a gate that tests a run against them.
    #[command(
        subcommand,
        after_help = "Examples:\n  \
        nearmetal baseline save results/today --to baselines\n  \
        nearmetal baseline list baselines\n  \
        nearmetal baseline gate results/today --baseline baselines\n  \
        nearmetal qualify --baseline baselines"
    )]
    Baseline(BaselineCommand),
    /// Sign what a run has shown of its hosts, so that others can test it again.
    #[command(after_help = "Examples:\n  \
        nearmetal certify --new-key signer\n  \
        nearmetal certify results/today --key signer --out host1.json\n\n\
        The signature is host1.json.minisig; minisign checks it as well:\n  \
        minisign -V -p signer.pub -m host1.json")]
    Certify(CertifyArgs),
    /// Whether a certificate holds: signature, time, facts, and figures of a new run.
    #[command(after_help = "Examples:\n  \
        nearmetal verify-certificate host1.json --public-key signer.pub\n  \
        nearmetal qualify --plan my-plan.toml --out again\n  \
        nearmetal verify-certificate host1.json --public-key signer.pub --against again\n\n\
        Exit codes: 0 it holds · 1 it does not · 2 usage, or a file that is none · \
        3 undecided: nobody has named the key, facts have drifted and no run was named, or the run \
        does not decide")]
    VerifyCertificate(VerifyCertificateArgs),
    /// Write the reports of a result folder again.
    #[command(after_help = "Examples:\n  nearmetal report results/today\n  \
        nearmetal report results/today --format markdown >> $GITHUB_STEP_SUMMARY\n  \
        nearmetal report results/today --format sarif > nearmetal.sarif")]
    Report(ReportArgs),
    /// Read other tools' output (sfnt-pingpong, sockperf, netperf, nuttcp, iperf3 JSON), and our
    /// own tables.
    #[command(after_help = "Examples:\n  nearmetal import pingpong.txt --out imported\n  \
        nearmetal import RESULT/sfnt/*.csv\n  \
        sockperf ping-pong -i 192.0.2.1 | nearmetal import -")]
    Import(ImportArgs),
    /// The published runs that are built in.
    #[command(subcommand)]
    Reference(ReferenceCommand),
    /// Configurations: a latency-critical guest for OpenStack or libvirt; Slurm, systemd.
    #[command(
        subcommand,
        long_about = "Writes configurations for a guest that gets a network device of this host, \
            every vCPU on a physical core of its own on the device's node, and huge pages there. \
            Fails with the reason if the host cannot carry such a guest. For Slurm and systemd \
            it writes scripts and units into a folder. Changes nothing.",
        after_help = "Examples:\n  \
            nearmetal generate openstack --vcpus 8 --memory 32GiB --nic ens1f0\n  \
            nearmetal generate openstack --vcpus 8 --memory 32GiB --nic ens1f0 --part flavor\n  \
            nearmetal generate libvirt --vcpus 4 --memory 8GiB --nic 3b:00.1 --realtime \\\n    \
            --disk /var/lib/libvirt/images/latency.qcow2 --out latency.xml\n  \
            nearmetal generate slurm --nodes 16 --limit 'p99 < 50us' --out slurm\n  \
            nearmetal generate systemd --every day --baseline /etc/nearmetal/accepted --out units"
    )]
    Generate(GenerateCommand),
    /// Settings of a host's firmware, by its management controller (Redfish).
    #[command(
        subcommand,
        long_about = "Reads the settings of a host's firmware from its management controller, \
            compares them with wanted ones, and stages changes for the next restart. `curl` must \
            be installed. `audit --bmc` judges them.",
        after_help = "Examples:\n  \
            nearmetal firmware show --bmc host7-bmc --bmc-login login\n  \
            nearmetal firmware show --bmc host7-bmc --bmc-login login --wanted wanted.toml\n  \
            nearmetal audit --bmc host7-bmc --bmc-login login"
    )]
    Firmware(FirmwareCommand),
    /// Change settings of this machine by steps that can be undone exactly.
    #[command(
        subcommand,
        after_help = "Examples:\n  \
        nearmetal tune plan --cpus 2-3 --link eth0\n  \
        nearmetal tune apply --only mem.thp,nic.coalesce --link eth0 --confirm-within 120\n  \
        nearmetal tune confirm\n  \
        nearmetal tune undo"
    )]
    Tune(TuneCommand),
    /// Pairs of virtual machines: what virtualization costs on this host.
    #[command(subcommand)]
    Lab(LabCommand),
    /// What works on this machine, what is missing and how to get it.
    #[command(after_help = "Ends with the line `ready`, or `not ready: ` and the reason.\n\n\
        Exit codes: 0 ready · 4 not ready, as an environment cannot be made")]
    Doctor(FormatArgs),
    /// The built-in plans, or the text of one.
    Plans {
        /// Plan to print.
        name: Option<String>,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// JSON Schemas of what nearmetal prints as JSON and of plans.
    #[command(after_help = "Examples:\n  nearmetal schema\n  nearmetal schema result")]
    Schema {
        /// Which one; without it the names of all, each with its commands.
        of: Option<String>,
    },
    /// Shell completions.
    Completions {
        /// Shell to write them for.
        shell: clap_complete::Shell,
    },
    /// The man page, or that of a command.
    #[command(after_help = "Examples:\n  nearmetal man exchange-run | man -l -\n  \
        nearmetal man --out /usr/local/share/man/man1")]
    Man {
        /// Command whose page is wanted: `qualify`, `exchange run` or `exchange-run`.
        command: Vec<String>,
        #[arg(long, value_name = "DIR", conflicts_with = "command", help = OUT)]
        out: Option<PathBuf>,
    },
    /// A distributed stock exchange on this machine or several.
    #[command(subcommand)]
    Exchange(ExchangeCommand),
    /// Take agents that connect out, and give them to `fleet run --controller`.
    #[command(
        long_about = "Listens for agents on hosts that ssh does not reach: pods, clouds, hosts \
            behind a NAT. They connect by TLS, show the token and wait for work. `fleet run \
            --controller SOCKET` on this machine measures between them. Ends with Ctrl-C; the \
            agents come back to the next one.",
        after_help = "Examples:\n  \
        nearmetal controller --listen 0.0.0.0:4850 --token-file token --key controller.key\n  \
        nearmetal fleet agents --controller nearmetal-controller.sock\n  \
        nearmetal fleet run --controller nearmetal-controller.sock --agents 8"
    )]
    Controller(ControllerArgs),
    /// Connect out to a controller, or serve on a guest's port, and wait for work.
    #[command(
        long_about = "Connects to a `nearmetal controller` and measures when it asks: only the \
            tasks of plans, never a command. Connects again when the controller goes. With \
            --serve-on it is the agent of a guest that others made, on a port of the guest. With \
            neither it is an agent on stdin and stdout, which environments start.",
        after_help = "Examples:\n  \
        nearmetal agent --connect controller.example:4850 --token-file token --pin PIN\n  \
        nearmetal agent --connect 192.0.2.1:4850 --token-file token --ca ca.pem \\\n    \
        --name pod-7 --label zone=a\n\n\
        Exit codes: 2 the controller refuses the token, or is not the one that is trusted · \
        4 it has another version · 130 ended by a signal"
    )]
    Agent(AgentArgs),
    /// Creates links between namespaces; started by environments.
    #[command(hide = true)]
    LabWire {
        /// Topology and process ids.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Keeps a namespace open until its input ends; started by environments.
    #[command(hide = true)]
    LabHold {
        /// Folder to remove at the end.
        folder: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct QualifyArgs {
    #[arg(long, default_value = "quick", value_name = "NAME|FILE[:PART]|-", help = shared::PLAN)]
    pub plan: String,
    #[arg(long, value_name = "DIR", help = OUT)]
    pub out: Option<PathBuf>,
    /// Label of the site, such as `rack 7`, which the result and its first screen show.
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    #[arg(long, value_delimiter = ',', value_name = "WORD,…", help = shared::ONLY)]
    pub only: Vec<String>,
    /// Judge the part that `--only` chooses by itself. Without this a part does not pass, as it
    /// shows nothing about the rest of its plan.
    #[arg(long, requires = "only")]
    pub only_targets: bool,
    /// Rounds, instead of the plan's.
    #[arg(long, value_parser = number(1_u32..=1000))]
    pub rounds: Option<u32>,
    #[command(flatten)]
    pub affinity: AffinityArgs,
    /// Reach the other end by IPv6.
    #[arg(long)]
    pub ipv6: bool,
    /// The server of the environment `ssh`, instead of the plan's: its ssh destination, and its
    /// address on the path that is measured.
    #[arg(long, value_name = "DEST[=ADDRESS]")]
    pub server: Option<HostSpec>,
    /// The client of the environment `ssh`, instead of the plan's; this machine if there is none.
    #[arg(long, value_name = "DEST[=ADDRESS]")]
    pub client: Option<HostSpec>,
    /// A guest that others made, for the environment `vm-attached`: `ssh:USER@HOST[:PORT]`,
    /// `socket:PATH`, `socket:HOST:PORT` or `serial:DEVICE`, with its address on the path that is
    /// measured. One is measured against this machine; of two, the first one is the client.
    #[arg(long, value_name = "PLACE[=ADDRESS]")]
    pub guest: Vec<AttachedGuest>,
    #[arg(long, value_name = "SOCKET", help = shared::CONTROLLER)]
    pub controller: Option<PathBuf>,
    /// Keep every sample, one ns value a line, in the folder's `samples/*.dat`.
    #[arg(long)]
    pub raw: bool,
    /// Allow factors of kind `tune-step` to change settings of this machine; each is put back after
    /// its trial, and `nearmetal tune undo` puts it back after a kill.
    #[arg(long)]
    pub change_machine: bool,
    #[arg(long, value_name = "FILE|DIR", help = shared::BASELINE)]
    pub baseline: Option<PathBuf>,
    #[command(flatten)]
    pub gate: GateArgs,
    /// Only show what would be done.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Result folder.
    pub folder: PathBuf,
    /// Also write one picture to share, 1200 × 630: verdict, machine, curves of the best stacks.
    /// Its name ends in .svg or .png.
    #[arg(long, value_name = "FILE")]
    pub card: Option<PathBuf>,
    /// Form of what is written to stdout.
    #[arg(long, value_enum, default_value = "text")]
    pub format: ReportFormat,
    #[command(flatten)]
    pub extent: ExtentArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For a pull request or a job summary, below 64 KB: `summary.md`.
    Markdown,
    /// For code scanning, SARIF 2.1.0.
    Sarif,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Files with another tool's output, or with that of `pingpong --sfnt`, `sfnt/*.csv` or
    /// `series.csv` of a result; `-` is stdin.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    #[arg(long, value_name = "DIR", help = OUT)]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Subcommand)]
pub enum ReferenceCommand {
    /// Names and what they are.
    List(FormatArgs),
    /// One run: its facts and figures.
    Show {
        /// Name, as `list` shows it.
        name: String,
        #[command(flatten)]
        format: FormatArgs,
    },
}
