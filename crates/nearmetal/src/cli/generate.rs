//! Options of `nearmetal generate`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nm_controller::tls::Pin;
use nm_fleet::Pairs;
use nm_fleet::hosts::HOSTS_MAX;
use nm_generate::engine::kubernetes::{
    CPUS_MAX, Capability, Device, Image, Label, Network, Node, Object, Toleration,
};
use nm_generate::engine::{AbsolutePath, Name, Partition, PlanName};
use nm_model::{Stack, Target, limits};

use crate::cli::number::number;
use crate::cli::server_address::ServerAddress;
use crate::cli::shared::{CONNECT, OUT, PIN, PLAN, ROOT};

#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// Parts of nova.conf and the commands for a flavor (Nova 26, Zed, or later).
    Openstack {
        #[command(flatten)]
        guest: GuestArgs,
        /// Only one part; all of them follow each other otherwise.
        #[arg(long, value_enum)]
        part: Option<OpenstackPart>,
    },
    /// A domain of libvirt.
    Libvirt {
        #[command(flatten)]
        guest: GuestArgs,
        /// Image of its disk: qcow2 by that ending, else raw. Without one the domain has no disk.
        #[arg(long, value_name = "PATH")]
        disk: Option<String>,
    },
    /// A batch script of Slurm for nodes and their pairs, and a health check that drains a node.
    Slurm(SlurmArgs),
    /// A service and a timer of systemd that qualify this machine again and again.
    Systemd(SystemdArgs),
    /// Jobs of Kubernetes that qualify nodes, or measure between two pods, and a script that
    /// collects their results; with --connect, agents for all nodes.
    Kubernetes(KubernetesArgs),
    /// A role and a playbook of Ansible that qualify hosts and leave nothing on them.
    Ansible(AnsibleArgs),
}

#[derive(Debug, Args)]
pub struct AnsibleArgs {
    /// Plan: a built-in one, or an absolute path.
    #[arg(long, default_value = "quick", value_name = "NAME|FILE[:PART]")]
    pub plan: PlanName,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Args)]
pub struct KubernetesArgs {
    /// Image whose program is nearmetal, such as `registry.example/nearmetal:0.1.0`.
    #[arg(long, value_name = "IMAGE")]
    pub image: Image,
    /// Namespace of all objects, which must exist.
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub namespace: Name,
    /// Name that begins those of all objects.
    #[arg(long, default_value = "nearmetal")]
    pub name: Object,
    #[arg(long, value_name = "NAME|FILE[:PART]|-", help = PLAN)]
    pub plan: Option<String>,
    /// Limit instead of a plan, such as `p99 < 50us`; may be repeated. It judges a node's ping-pong
    /// over loopback or its `time-lost`, or with `--pair` the ping-pong between the pods.
    #[arg(long, value_name = "TARGET", conflicts_with = "plan")]
    pub limit: Vec<Target>,
    /// Node with a job of its own; may be repeated. One job on any node without this.
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub node: Vec<Node>,
    /// Measure between pods on two nodes over this stack, such as `tcp-spin`, instead: by the
    /// pods' own network, or that of their nodes.
    #[arg(long, value_name = "STACK", conflicts_with_all = ["plan", "node", "network"])]
    pub pair: Option<Stack>,
    #[arg(long, value_name = "HOST[:PORT]", help = CONNECT, requires = "pin",
          conflicts_with_all = ["plan", "limit", "node", "pair", "network"])]
    pub connect: Option<ServerAddress>,
    #[arg(long, value_name = "SHA256", help = PIN, requires = "connect")]
    pub pin: Option<Pin>,
    #[command(flatten)]
    pub pod: PodArgs,
    #[arg(long, value_name = "DIR", help = OUT)]
    pub out: PathBuf,
}

/// What each pod gets.
#[derive(Debug, Args)]
pub struct PodArgs {
    /// Label that nodes must have; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub node_selector: Vec<Label>,
    /// Taint that the pods bear; may be repeated.
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]")]
    pub toleration: Vec<Toleration>,
    /// Use the network of the node instead of the pods' network.
    #[arg(long)]
    pub host_network: bool,
    /// Whole CPUs of a pod, its own where the CPU manager is `static`.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number(1..=CPUS_MAX))]
    pub pod_cpus: u32,
    /// Memory, as in `32GiB`.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub memory: String,
    /// Huge pages, as in `512MiB`, at /dev/hugepages.
    #[arg(long, value_name = "SIZE")]
    pub huge_pages: Option<String>,
    /// Size of a huge page.
    #[arg(long, value_enum, default_value = "2MiB", value_name = "SIZE", requires = "huge_pages")]
    pub huge_page: PageArg,
    /// Resource of a device plugin, such as `intel.com/sriov_net`, one of it; may be repeated.
    #[arg(long, value_name = "DOMAIN/NAME")]
    pub device: Vec<Device>,
    /// Network of Multus beside the pod's own; may be repeated.
    #[arg(long, value_name = "[NAMESPACE/]NAME[@LINK]")]
    pub network: Vec<Network>,
    /// Capability, such as `IPC_LOCK`, which makes the pod's user root; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub capability: Vec<Capability>,
}

#[derive(Debug, Args)]
pub struct SlurmArgs {
    /// Nodes of the job.
    #[arg(long, value_name = "N", value_parser = number(1_usize..=HOSTS_MAX))]
    pub nodes: usize,
    /// Partition of the job, instead of Slurm's default.
    #[arg(long, value_name = "NAME")]
    pub partition: Option<Partition>,
    /// Plan of each pair, whose rows are all of the environment `ssh`: a built-in one, or an
    /// absolute path.
    #[arg(long, default_value = "two-hosts", value_name = "NAME|FILE[:PART]")]
    pub plan: PlanName,
    /// Which pairs: each node with each other one, with the next, the first with each other one, or
    /// K rounds drawn from those of `all`.
    #[arg(long, default_value = "all", value_name = "all|ring|star|sample:K")]
    pub pairs: Pairs,
    /// Limit of a node's ping-pong over loopback, or of `time-lost`, such as `p99 < 50us`; may be
    /// repeated.
    #[arg(long, value_name = "TARGET")]
    pub limit: Vec<Target>,
    /// Absolute path of Slurm's configuration, if it is not at its default place.
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<AbsolutePath>,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Args)]
pub struct SystemdArgs {
    /// How often it runs.
    #[arg(long, value_enum, default_value = "day", value_name = "TIME")]
    pub every: EveryArg,
    /// Plan: a built-in one, or an absolute path.
    #[arg(long, default_value = "quick", value_name = "NAME|FILE[:PART]")]
    pub plan: PlanName,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// What the files of all engines need.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// Name of the job, the units or the objects.
    #[arg(long, default_value = "nearmetal")]
    pub name: Name,
    /// Absolute path of nearmetal where the files are used.
    #[arg(long, default_value = "/usr/bin/nearmetal", value_name = "PATH")]
    pub program: AbsolutePath,
    /// Absolute path of accepted runs, a file or folder of `baseline save`, where the files are
    /// used.
    #[arg(long, value_name = "FILE|DIR")]
    pub baseline: Option<AbsolutePath>,
    #[arg(long, value_name = "DIR", help = OUT)]
    pub out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EveryArg {
    Hour,
    Day,
    Week,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpenstackPart {
    /// `nova.conf` of the compute node.
    Compute,
    /// `nova.conf` of the nodes with the API and the scheduler.
    Controller,
    /// Commands for the flavor.
    Flavor,
}

#[derive(Debug, Args)]
pub struct GuestArgs {
    /// Virtual CPUs of each guest.
    #[arg(long, value_name = "N", value_parser = number(1..=limits::GUEST_VCPUS_MAX))]
    pub vcpus: u32,
    /// Memory, as in `32GiB`.
    #[arg(long, value_name = "SIZE")]
    pub memory: String,
    /// Network device that the guest gets: a link or a PCI address. All is placed on its node.
    #[arg(long, value_name = "LINK|ADDRESS")]
    pub nic: String,
    /// Size of the pages of the memory.
    #[arg(long, value_enum, default_value = "1GiB", value_name = "SIZE")]
    pub page: PageArg,
    /// Cores of the node that are kept for such guests; all but one without this.
    #[arg(long, value_name = "N")]
    pub dedicated_cores: Option<u32>,
    /// Schedule the vCPUs in real time, except the first one.
    #[arg(long)]
    pub realtime: bool,
    /// Name of the guest, the flavor and the alias.
    #[arg(long, default_value = "latency")]
    pub name: String,
    #[arg(long, default_value = "/", value_name = "DIR", help = ROOT)]
    pub root: PathBuf,
    /// Write to this new file instead of stdout.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PageArg {
    #[value(name = "2MiB")]
    Mib2,
    #[value(name = "1GiB")]
    Gib1,
}
