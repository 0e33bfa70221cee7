//! The name of a node, from the command line to the log: its class, and which one of its class.

use std::fmt;
use std::ops::{Index, IndexMut};
use std::str::FromStr;

use nm_codec::{DecodeError, Reader};
use nm_model::exchange::NodeCounts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::value::Value;

crate::codes! {
    /// A class of nodes.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Role {
        /// Keeps the clients' connections, and their requests until they are answered.
        Gateway = 0,
        /// Sends each request to the mediator that leads its instrument's cell.
        Router = 1,
        /// Puts requests in order and matches them.
        Mediator = 2,
        /// Transaction processor: sends replies and broadcasts out.
        Processor = 3,
    }
}

/// A text that is not the name of a [`Role`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a class of nodes: gateway, router, mediator or processor")]
pub struct UnknownRole(String);

impl Role {
    /// How many nodes of this class there are.
    pub fn count(self, counts: NodeCounts) -> usize {
        counts.of_class[usize::from(self.code())].into()
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Gateway => "gateway",
            Role::Router => "router",
            Role::Mediator => "mediator",
            Role::Processor => "processor",
        }
    }

    /// The node of this class with this number.
    pub const fn node(self, index: u16) -> NodeId {
        NodeId { class: self, index }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Role, UnknownRole> {
        let role = Role::ALL.iter().find(|role| role.name() == text);
        role.copied().ok_or_else(|| UnknownRole(text.to_string()))
    }
}

crate::record! {
    /// A node.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema
    )]
    pub struct NodeId {
        /// Its class.
        #[serde(rename = "role")]
        class: Role,
        /// Which one of its class.
        index: u16,
    }
}

/// Why a text does not name a node.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NodeIdError {
    /// It does not have the form of a node.
    #[error("write ROLE:INDEX, such as mediator:0")]
    Shape,
    /// The class does not exist.
    #[error(transparent)]
    Role(#[from] UnknownRole),
}

impl NodeId {
    /// Its position among the nodes of its class.
    pub const fn position(self) -> usize {
        self.index as usize
    }

    /// The name of its files: `mediator-0`.
    pub fn file_name(self) -> String {
        format!("{}-{}", self.class, self.index)
    }

    /// Appends its bytes.
    pub fn write(self, out: &mut Vec<u8>) {
        self.put(out);
    }

    /// Reads what [`NodeId::write`] appended.
    ///
    /// # Errors
    /// If there is no such class.
    pub fn read(reader: &mut Reader<'_>) -> Result<NodeId, DecodeError> {
        NodeId::take("node", reader)
    }
}

/// Writes `mediator 0`, as in sentences; where somebody names a node, it is `mediator:0`.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.class, self.index)
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    /// Reads `mediator:0`.
    fn from_str(text: &str) -> Result<NodeId, NodeIdError> {
        let (class, index) = text.split_once(':').ok_or(NodeIdError::Shape)?;
        let class: Role = class.parse()?;
        Ok(class.node(index.parse().map_err(|_| NodeIdError::Shape)?))
    }
}

/// One value for each class of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerClass<T>([T; Role::ALL.len()]);

impl<T> PerClass<T> {
    /// The values that `of` has for the classes, in the ring's order.
    pub fn new(mut of: impl FnMut(Role) -> T) -> PerClass<T> {
        PerClass(std::array::from_fn(|code| of(Role::ALL[code])))
    }

    /// The classes with their values, in the ring's order.
    pub fn iter(&self) -> impl Iterator<Item = (Role, &T)> {
        Role::ALL.iter().copied().zip(&self.0)
    }

    /// The same values, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Role, &mut T)> {
        Role::ALL.iter().copied().zip(&mut self.0)
    }
}

impl<T> Index<Role> for PerClass<T> {
    type Output = T;

    fn index(&self, class: Role) -> &T {
        &self.0[usize::from(class.code())]
    }
}

impl<T> IndexMut<Role> for PerClass<T> {
    fn index_mut(&mut self, class: Role) -> &mut T {
        &mut self.0[usize::from(class.code())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_back_from_its_text_and_its_bytes() {
        for node in Role::ALL.iter().map(|class| class.node(40_000)) {
            assert_eq!(node.to_string().replace(' ', ":").parse(), Ok(node));
            let mut bytes = vec![];
            node.write(&mut bytes);
            assert_eq!(NodeId::read(&mut Reader::new(&bytes)), Ok(node));
        }
        for wrong in ["mediator", "mediator:", "mediator:-1", "mediator:65536", "mediator 1"] {
            assert_eq!(wrong.parse::<NodeId>(), Err(NodeIdError::Shape), "{wrong}");
        }
        let unknown = "medium:1".parse::<NodeId>().unwrap_err();
        assert!(unknown.to_string().contains("`medium` is not a class"), "{unknown}");
    }

    #[test]
    fn each_class_has_its_own_value() {
        let mut values = PerClass::new(Role::name);
        values[Role::Router] = "changed";
        let all: Vec<_> = values.iter().map(|(class, value)| (class, *value)).collect();
        let (g, m, p) = (Role::Gateway, Role::Mediator, Role::Processor);
        let wanted = [(g, g.name()), (Role::Router, "changed"), (m, m.name()), (p, p.name())];
        assert_eq!(all, wanted);
    }
}
