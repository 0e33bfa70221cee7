//! A network as its file has it: the fields of each class side by side.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::master::{InstrumentText, Master};

use super::{ClassNodes, Durability, Network, Node, PerClass, Role};

/// The content of a network file; [`super::Network`] says what the fields mean.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkFile {
    #[serde(default, skip_serializing_if = "is_no_number")]
    cluster: u64,
    #[serde(default)]
    durability: Durability,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<PathBuf>,
    #[serde(default)]
    record: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "is_zero")]
    spare_mediators: usize,
    #[serde(default, skip_serializing_if = "is_zero")]
    added_mediators: usize,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_mediators: BTreeSet<u16>,
    #[serde(default, skip_serializing_if = "is_zero")]
    added_routers: usize,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_routers: BTreeSet<u16>,
    #[serde(default, skip_serializing_if = "is_zero")]
    added_processors: usize,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_processors: BTreeSet<u16>,
    #[serde(default, skip_serializing_if = "is_zero")]
    added_gateways: usize,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed_gateways: BTreeSet<u16>,
    gateway: Vec<Node>,
    router: Vec<Node>,
    mediator: Vec<Node>,
    processor: Vec<Node>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    instrument: Vec<InstrumentText>,
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
            instrument: self.master.as_ref().map_or(vec![], |master| master.texts()),
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
        let NetworkFile { cluster, durability, data, record, secret, spare_mediators, .. } = file;
        let master = match file.instrument.as_slice() {
            [] => None,
            texts => Some(Arc::new(Master::of_texts(texts).map_err(D::Error::custom)?)),
        };
        Ok(Network { cluster, durability, data, record, secret, spare_mediators, master, classes })
    }
}
