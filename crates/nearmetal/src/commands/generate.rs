//! `nearmetal generate`: configurations for a latency-critical guest of this host, and files for
//! the engines that run nearmetal on many hosts.

use std::fs;
use std::path::Path;

use anyhow::Result;
use nm_generate::engine::ansible::{self, AnsibleRequest};
use nm_generate::engine::kubernetes::{
    self, AgentWork, KubernetesRequest, NodeWork, PairWork, PodRequest, Work,
};
use nm_generate::engine::slurm::{self, SlurmRequest};
use nm_generate::engine::systemd::{self, Every, SystemdRequest};
use nm_generate::engine::{EngineError, EngineFile, NodePlan, PairsName};
use nm_generate::openstack::{self, Part};
use nm_generate::{PageSize, PlaceError, Placement, Request, libvirt};
use nm_model::Plan;
use nm_model::environment::Distance;
use nm_model::plan::PlanRow;
use nm_sys::complete_file;

use crate::cli::generate::{
    AnsibleArgs, EveryArg, GenerateCommand, GuestArgs, KubernetesArgs, OpenstackPart, PageArg,
    PodArgs, SlurmArgs, SystemdArgs,
};
use crate::exit::{Exit, Stop};
use crate::{output, plans};

/// Mode of scripts.
const MODE_PROGRAM: u32 = 0o755;

pub fn run(command: &GenerateCommand) -> Result<Exit> {
    match command {
        GenerateCommand::Openstack { guest, part } => {
            let request = request(guest, None)?;
            let parts = match part {
                None => Part::ALL.to_vec(),
                Some(OpenstackPart::Compute) => vec![Part::Compute],
                Some(OpenstackPart::Controller) => vec![Part::Controller],
                Some(OpenstackPart::Flavor) => vec![Part::Flavor],
            };
            let text = openstack::text(&place(guest, &request)?, &request, &parts);
            write(guest.out.as_deref(), &text)?;
        }
        GenerateCommand::Libvirt { guest, disk } => {
            let request = request(guest, disk.clone())?;
            let text = libvirt::domain(&place(guest, &request)?, &request);
            write(guest.out.as_deref(), &text)?;
        }
        GenerateCommand::Slurm(args) => {
            let SlurmArgs { engine, .. } = args;
            let node = NodePlan::new(args.limit.clone(), engine.baseline.clone());
            let request = SlurmRequest {
                name: engine.name.clone(),
                nodes: args.nodes,
                partition: args.partition.clone(),
                program: engine.program.clone(),
                plan: args.plan.clone(),
                pairs: PairsName::of(&args.pairs),
                node: node.map_err(|fault| Stop::usage(fault.to_string()))?,
                configuration: args.slurm_conf.clone(),
            };
            write_files(&engine.out, &slurm::files(&request))?;
        }
        GenerateCommand::Systemd(args) => {
            let SystemdArgs { engine, .. } = args;
            let request = SystemdRequest {
                name: engine.name.clone(),
                every: match args.every {
                    EveryArg::Hour => Every::Hour,
                    EveryArg::Day => Every::Day,
                    EveryArg::Week => Every::Week,
                },
                program: engine.program.clone(),
                plan: args.plan.clone(),
                baseline: engine.baseline.clone(),
            };
            write_files(&engine.out, &systemd::files(&request))?;
        }
        GenerateCommand::Kubernetes(args) => {
            let request = kubernetes_request(args)?;
            write_files(&args.out, &kubernetes::files(&request))?;
        }
        GenerateCommand::Ansible(AnsibleArgs { plan, engine }) => {
            let request = AnsibleRequest {
                name: engine.name.clone(),
                program: engine.program.clone(),
                plan: plan.clone(),
                baseline: engine.baseline.clone(),
            };
            write_files(&engine.out, &ansible::files(&request))?;
        }
    }
    Ok(Exit::Pass)
}

fn kubernetes_request(args: &KubernetesArgs) -> Result<KubernetesRequest> {
    let refused = |fault: EngineError| Stop::usage(fault.to_string());
    let work = match (args.pair, &args.connect, &args.pin) {
        (Some(stack), ..) => Work::Pair(PairWork::new(stack, args.limit.clone()).map_err(refused)?),
        (None, Some(controller), Some(pin)) => {
            let port = controller.port.unwrap_or(nm_controller::PORT);
            Work::Agents(AgentWork::new(&controller.with_port(port), pin))
        }
        (None, ..) => Work::Nodes(node_work(args)?),
    };
    let request = KubernetesRequest {
        name: args.name.clone(),
        namespace: args.namespace.clone(),
        pod: pod_request(args)?,
        work,
    };
    request.check().map_err(refused)?;
    Ok(request)
}

/// The plan of nodes, whose rows must run within one pod.
fn node_work(args: &KubernetesArgs) -> Result<NodeWork> {
    let (text, part, plan) = match &args.plan {
        Some(word) => {
            let read = plans::read(word)?;
            let plan = read.parse()?;
            (read.text.to_string(), read.part.map(str::to_string), plan)
        }
        None => {
            let node = NodePlan::new(args.limit.clone(), None)
                .map_err(|fault| Stop::usage(fault.to_string()))?;
            let plan = Plan::parse(node.text()).map_err(|fault| Stop::usage(fault.to_string()))?;
            (node.text().to_string(), None, plan)
        }
    };
    let is_elsewhere = |row: &&PlanRow<'_>| row.environment.distance() == Distance::Hosts;
    if let Some(row) = plan.rows().iter().find(is_elsewhere) {
        let plan = &plan.name;
        return Err(Stop::usage(format!(
            "plan {plan} has the row {}, which runs on two machines; pods have no ssh: use \
             --pair, or another plan",
            row.path()
        )));
    }
    let duration_s = plan.duration_s().ceil() as u64;
    Ok(NodeWork { plan: text, part, duration_s, nodes: args.node.clone() })
}

fn pod_request(args: &KubernetesArgs) -> Result<PodRequest> {
    let PodArgs { memory, huge_pages, .. } = &args.pod;
    let usage = |fault: nm_generate::RequestError| Stop::usage(fault.to_string());
    let page_size = page_size(args.pod.huge_page);
    let huge_bytes = huge_pages.as_deref().map(nm_generate::parse_memory).transpose();
    let pod = PodRequest {
        image: args.image.clone(),
        node_selector: args.pod.node_selector.clone(),
        tolerations: args.pod.toleration.clone(),
        host_network: args.pod.host_network,
        cpus: args.pod.pod_cpus,
        memory_bytes: nm_generate::parse_memory(memory).map_err(usage)?,
        huge_pages: huge_bytes.map_err(usage)?.map(|bytes| (page_size, bytes)),
        devices: args.pod.device.clone(),
        networks: args.pod.network.clone(),
        capabilities: args.pod.capability.clone(),
    };
    pod.check().map_err(usage)?;
    Ok(pod)
}

fn page_size(page: PageArg) -> PageSize {
    match page {
        PageArg::Mib2 => PageSize::Mib2,
        PageArg::Gib1 => PageSize::Gib1,
    }
}

/// Writes the files of an engine into a new or an empty folder; none is written over.
fn write_files(folder: &Path, files: &[EngineFile]) -> Result<()> {
    for EngineFile { name, text, is_program } in files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| output::file_error(parent, &error))?;
        }
        let mode = if *is_program { MODE_PROGRAM } else { complete_file::MODE_PUBLIC };
        complete_file::create(&path, text.as_bytes(), mode)
            .map_err(|error| output::file_error(&path, &error))?;
        output::message(&format!("wrote {}", path.display()));
    }
    Ok(())
}

fn request(guest: &GuestArgs, disk: Option<String>) -> Result<Request> {
    let usage = |error: nm_generate::RequestError| Stop::usage(error.to_string());
    let request = Request {
        name: guest.name.clone(),
        vcpus: guest.vcpus,
        memory_bytes: nm_generate::parse_memory(&guest.memory).map_err(usage)?,
        nic: guest.nic.clone(),
        page_size: page_size(guest.page),
        dedicated_cores: guest.dedicated_cores,
        realtime: guest.realtime,
        disk,
    };
    request.check().map_err(usage)?;
    Ok(request)
}

fn place(guest: &GuestArgs, request: &Request) -> Result<Placement> {
    if !guest.root.is_dir() {
        let root = guest.root.display();
        return Err(Stop::usage(format!("--root: there is no folder {root}")));
    }
    let layout = nm_generate::read(&guest.root);
    let placement = nm_generate::place(&layout, request).map_err(|error| {
        let exit = match error {
            PlaceError::Request(_)
            | PlaceError::NoCpus
            | PlaceError::NoSuchNic { .. }
            | PlaceError::DedicatedCores { .. } => Exit::Usage,
            _ => Exit::Environment,
        };
        Stop::with(exit, error.to_string())
    })?;
    for reason in &placement.reasons {
        output::message(&format!("CPUs: {reason}"));
    }
    Ok(placement)
}

fn write(out: Option<&Path>, text: &str) -> Result<()> {
    let Some(path) = out else { return output::data(text) };
    complete_file::create(path, text.as_bytes(), complete_file::MODE_PUBLIC)
        .map_err(|error| output::file_error(path, &error))
}
