//! What is asked of Kubernetes, and what no single word of it shows to be wrong.

use std::fmt::Display;

use nm_model::{Protocol, Stack, Target};

use super::words::{Capability, Device, Image, Label, Network, Node, Object, Toleration};
use crate::engine::words::{EngineError, LIMITS_MAX, Name};
use crate::request::{PageSize, RequestError, check_memory, check_pages};

/// Most nodes of one request.
const NODES_MAX: usize = 256;

/// Most labels, tolerations, devices or networks.
const WORDS_MAX: usize = 32;

/// Longest plan, bytes: a ConfigMap has less than 1 MiB, also with what is escaped in it.
pub const PLAN_BYTES_MAX: usize = 256 << 10;

/// Most CPUs of a pod.
pub const CPUS_MAX: u32 = 512;

/// What is asked of Kubernetes.
#[derive(Debug, Clone)]
pub struct KubernetesRequest {
    /// Name that begins those of all objects.
    pub name: Object,
    /// Namespace of all objects, which exists.
    pub namespace: Name,
    /// The pods.
    pub pod: PodRequest,
    /// What they do.
    pub work: Work,
}

/// What every pod gets.
#[derive(Debug, Clone)]
pub struct PodRequest {
    /// The image, whose program is nearmetal.
    pub image: Image,
    /// Labels that its node has.
    pub node_selector: Vec<Label>,
    /// Taints that it bears.
    pub tolerations: Vec<Toleration>,
    /// Whether it uses the network of its node.
    pub host_network: bool,
    /// Whole CPUs.
    pub cpus: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Huge pages, bytes of a size.
    pub huge_pages: Option<(PageSize, u64)>,
    /// Devices, one of each.
    pub devices: Vec<Device>,
    /// Networks of Multus beside the pod's own.
    pub networks: Vec<Network>,
    /// Capabilities; with one of them its user is root.
    pub capabilities: Vec<Capability>,
}

impl PodRequest {
    /// Checks its memory.
    ///
    /// # Errors
    /// The first amount that is wrong.
    pub fn check(&self) -> Result<(), RequestError> {
        check_memory(self.memory_bytes)?;
        match self.huge_pages {
            Some((size, bytes)) => check_pages(bytes, size),
            None => Ok(()),
        }
    }
}

/// What the pods do.
#[derive(Debug, Clone)]
pub enum Work {
    /// Each node qualifies itself by a plan.
    Nodes(NodeWork),
    /// One pod measures to another one on another node.
    Pair(PairWork),
    /// An agent on each node waits for a controller's work.
    Agents(AgentWork),
}

/// A plan for nodes.
#[derive(Debug, Clone)]
pub struct NodeWork {
    /// The plan, in TOML.
    pub plan: String,
    /// The part of it.
    pub part: Option<String>,
    /// How long it measures, s.
    pub duration_s: u64,
    /// A job for each of these; one job on any node that the selector allows if there are none.
    pub nodes: Vec<Node>,
}

/// A ping-pong between pods.
#[derive(Debug, Clone)]
pub struct PairWork {
    pub(super) stack: Stack,
    pub(super) limits: Vec<Target>,
}

impl PairWork {
    /// A ping-pong over kernel sockets, and what judges it.
    ///
    /// # Errors
    /// If the stack is none between two pods, or there are too many limits.
    pub fn new(stack: Stack, limits: Vec<Target>) -> Result<PairWork, EngineError> {
        let is_network = matches!(stack.protocol, Protocol::Tcp | Protocol::Udp);
        if !is_network || stack.launcher.is_some() {
            return Err(EngineError::PairStack(stack.to_string()));
        }
        match limits.len() > LIMITS_MAX {
            true => Err(EngineError::Limits(limits.len())),
            false => Ok(PairWork { stack, limits }),
        }
    }
}

/// Agents that connect out.
#[derive(Debug, Clone)]
pub struct AgentWork {
    pub(super) controller: String,
    pub(super) pin: String,
}

impl AgentWork {
    /// Agents that trust a controller by its key.
    ///
    /// `controller` is a host with its port, and `pin` the SHA-256 of its key, as `nearmetal agent`
    /// reads them.
    pub fn new(controller: &impl Display, pin: &impl Display) -> AgentWork {
        AgentWork { controller: controller.to_string(), pin: pin.to_string() }
    }
}

impl KubernetesRequest {
    /// Checks what no single word shows.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), EngineError> {
        let PodRequest { node_selector, tolerations, devices, networks, .. } = &self.pod;
        let counts = [
            ("--node-selector", node_selector.len(), WORDS_MAX),
            ("--toleration", tolerations.len(), WORDS_MAX),
            ("--device", devices.len(), WORDS_MAX),
            ("--network", networks.len(), WORDS_MAX),
        ];
        let nodes: &[Node] = match &self.work {
            Work::Nodes(work) => &work.nodes,
            Work::Pair(_) | Work::Agents(_) => &[],
        };
        for (option, n, max) in [&counts[..], &[("--node", nodes.len(), NODES_MAX)]].concat() {
            if n > max {
                return Err(EngineError::TooMany { option, n, max });
            }
        }
        if let Some(twice) = first_twice(nodes) {
            return Err(EngineError::Twice { option: "--node", word: twice.to_string() });
        }
        if let Some(twice) = first_twice(devices) {
            return Err(EngineError::Twice { option: "--device", word: twice.to_string() });
        }
        let keys: Vec<&String> = node_selector.iter().map(|label| &label.key).collect();
        if let Some(twice) = first_twice(&keys) {
            return Err(EngineError::Twice { option: "--node-selector", word: twice.to_string() });
        }
        match &self.work {
            Work::Nodes(work) if work.plan.len() > PLAN_BYTES_MAX => {
                Err(EngineError::PlanBytes(work.plan.len()))
            }
            _ => Ok(()),
        }
    }
}

fn first_twice<T: PartialEq>(words: &[T]) -> Option<&T> {
    words.iter().enumerate().find(|(at, word)| words[..*at].contains(word)).map(|(_, word)| word)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A request with a node and nothing beside.
    pub(in crate::engine) fn request() -> KubernetesRequest {
        KubernetesRequest {
            name: "rack".parse().unwrap(),
            namespace: "default".parse().unwrap(),
            pod: PodRequest {
                image: "nearmetal".parse().unwrap(),
                node_selector: vec![],
                tolerations: vec![],
                host_network: false,
                cpus: 3,
                memory_bytes: 1 << 30,
                huge_pages: None,
                devices: vec![],
                networks: vec![],
                capabilities: vec![],
            },
            work: Work::Nodes(NodeWork {
                plan: String::new(),
                part: Some("a$(b)".into()),
                duration_s: 1,
                nodes: vec![],
            }),
        }
    }

    #[test]
    fn more_than_a_manifest_holds_is_refused() {
        let fault = |change: &dyn Fn(&mut KubernetesRequest)| {
            let mut request = request();
            change(&mut request);
            request.check().unwrap_err().to_string()
        };
        let with_work = |change: &dyn Fn(&mut NodeWork)| {
            fault(&|request| {
                let Work::Nodes(work) = &mut request.work else { unreachable!() };
                change(work);
            })
        };
        assert_eq!(request().check(), Ok(()));
        let nodes = |n: usize| -> Vec<Node> {
            (0..n).map(|number| format!("n{number}").parse().unwrap()).collect()
        };
        let said = with_work(&|work| work.nodes = nodes(NODES_MAX + 1));
        assert_eq!(said, "--node is given 257 times: at most 256");
        let said = with_work(&|work| work.plan = "#".repeat(PLAN_BYTES_MAX + 1));
        assert_eq!(said, "the plan has 262145 bytes: at most 262144 fit in a ConfigMap");
        let said = fault(&|request| {
            request.pod.networks = vec!["fast".parse().unwrap(); WORDS_MAX + 1];
        });
        assert_eq!(said, "--network is given 33 times: at most 32");
        let said = fault(&|request| request.pod.devices = vec!["a.b/c".parse().unwrap(); 2]);
        assert_eq!(said, "--device: `a.b/c` is given twice");
    }

    #[test]
    fn a_pair_needs_a_stack_between_pods() {
        for (stack, is_ok) in [
            ("tcp-spin", true),
            ("udp-blocking", true),
            ("shm-spin", false),
            ("accel+tcp-spin", false),
        ] {
            let made = PairWork::new(stack.parse().unwrap(), vec![]);
            assert_eq!(made.is_ok(), is_ok, "{stack}");
        }
        let limits = vec!["p99 < 1us".parse().unwrap(); LIMITS_MAX + 1];
        let made = PairWork::new("tcp-spin".parse().unwrap(), limits).unwrap_err();
        assert_eq!(made, EngineError::Limits(65));
    }
}
