//! A network as its file has it: the fields of each class side by side.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::firms::{Firm, Firms};
use crate::master::{InstrumentText, Master};

use super::{ClassNodes, Durability, LogLimits, Network, Node, PerClass, Role};

/// The content of a network file; [`super::Network`] says what the fields mean.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NetworkFile {
    /// Number that no other network has; zero for none.
    #[serde(default, skip_serializing_if = "is_no_number")]
    cluster: u64,
    /// When a request counts as executed.
    #[serde(default)]
    durability: Durability,
    /// Folder for journals: each node has its own below it. Relative to this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<PathBuf>,
    /// Whether batches are recorded where durability needs no journal.
    #[serde(default)]
    record: bool,
    /// File of the secret, relative to this one; needed where other hosts may reach a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<PathBuf>,
    /// So many mediators, the last founders, begin without instruments.
    #[serde(default, skip_serializing_if = "is_zero")]
    spare_mediators: usize,
    /// So many of the mediators, the last ones, were added while the network ran.
    #[serde(default, skip_serializing_if = "is_zero")]
    added_mediators: usize,
    /// Which of the mediators that were added were removed again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_mediators: BTreeSet<u16>,
    /// So many of the routers, the last ones, were added while the network ran.
    #[serde(default, skip_serializing_if = "is_zero")]
    added_routers: usize,
    /// Which of the routers that were added were removed again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_routers: BTreeSet<u16>,
    /// So many of the processors, the last ones, were added while the network ran.
    #[serde(default, skip_serializing_if = "is_zero")]
    added_processors: usize,
    /// Which of the processors that were added were removed again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_processors: BTreeSet<u16>,
    /// So many of the gateways, the last ones, were added while the network ran.
    #[serde(default, skip_serializing_if = "is_zero")]
    added_gateways: usize,
    /// Which of the gateways that were added were removed again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_gateways: BTreeSet<u16>,
    /// How much `exchange serve` keeps of what each node writes.
    #[serde(default, skip_serializing_if = "LogLimits::is_default")]
    logs: LogLimits,
    /// Gateways, to which clients connect.
    gateway: Vec<Node>,
    /// Routers.
    router: Vec<Node>,
    /// Mediators, one for each cell of instruments.
    mediator: Vec<Node>,
    /// Transaction processors.
    processor: Vec<Node>,
    /// The instruments that may be traded; any if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    instrument: Vec<InstrumentText>,
    /// The firms whose sessions may connect; any session if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    firm: Vec<Firm>,
}

/// That of a network's file: of the same content in JSON.
impl JsonSchema for Network {
    fn schema_name() -> Cow<'static, str> {
        "network".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        NetworkFile::json_schema(generator)
    }
}

fn is_no_number(number: &u64) -> bool {
    *number == 0
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl NetworkFile {
    /// The fields of a class: its nodes, how many were added, and which of these were removed.
    fn class(&mut self, class: Role) -> (&mut Vec<Node>, &mut usize, &mut BTreeSet<u16>) {
        match class {
            Role::Gateway => {
                (&mut self.gateway, &mut self.added_gateways, &mut self.removed_gateways)
            }
            Role::Router => (&mut self.router, &mut self.added_routers, &mut self.removed_routers),
            Role::Mediator => {
                (&mut self.mediator, &mut self.added_mediators, &mut self.removed_mediators)
            }
            Role::Processor => {
                (&mut self.processor, &mut self.added_processors, &mut self.removed_processors)
            }
        }
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut file = NetworkFile {
            cluster: self.cluster,
            durability: self.durability,
            data: self.data.clone(),
            record: self.record,
            secret: self.secret.clone(),
            spare_mediators: self.spare_mediators,
            logs: self.logs,
            instrument: self.master.as_ref().map_or(vec![], |master| master.texts()),
            firm: self.firms.as_ref().map_or(vec![], |firms| firms.all().to_vec()),
            ..NetworkFile::default()
        };
        for (class, of) in self.classes.iter() {
            let (nodes, added, removed) = file.class(class);
            (*nodes, *added, *removed) = (of.nodes.clone(), of.added, of.removed.clone());
        }
        file.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Network, D::Error> {
        let mut file = NetworkFile::deserialize(from)?;
        let classes = PerClass::new(|class| {
            let (nodes, added, removed) = file.class(class);
            let (nodes, removed) = (std::mem::take(nodes), std::mem::take(removed));
            ClassNodes { nodes, added: *added, removed }
        });
        let master = match file.instrument.as_slice() {
            [] => None,
            texts => Some(Arc::new(Master::of_texts(texts).map_err(D::Error::custom)?)),
        };
        let firms = match std::mem::take(&mut file.firm) {
            all if all.is_empty() => None,
            all => Some(Arc::new(Firms::of(all).map_err(D::Error::custom)?)),
        };
        let NetworkFile {
            cluster, durability, data, record, secret, spare_mediators, logs, ..
        } = file;
        Ok(Network {
            cluster,
            durability,
            data,
            record,
            secret,
            spare_mediators,
            logs,
            master,
            firms,
            classes,
        })
    }
}
