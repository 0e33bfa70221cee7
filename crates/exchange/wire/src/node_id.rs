//! The name of a node, from the command line to the log: its class, and which one of its class.

use std::fmt;
use std::ops::{Index, IndexMut};
use std::str::FromStr;

use nm_codec::{DecodeError, Reader};
use nm_model::exchange::NodeCounts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::random::Random;
use crate::types::{Alternative, Definition, Field, Types};
use crate::value::Value;

/// A class of nodes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Keeps the clients' connections, and their requests until they are answered.
    Gateway,
    /// Sends each request to the mediator that leads its instrument's cell.
    Router,
    /// Puts requests in order and matches them.
    Mediator,
    /// Transaction processor: sends replies and broadcasts out.
    Processor,
}

nm_codec::codes!(Role { Gateway = 0, Router = 1, Mediator = 2, Processor = 3 });

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

impl<'a> Value<'a> for Role {
    const SIZE: Option<usize> = Some(1);

    fn put(&self, out: &mut Vec<u8>) {
        self.code().put(out);
    }

    fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<Role, DecodeError> {
        Role::from_code(field, reader.u8(field)?)
    }

    fn describe(types: &mut Types) -> String {
        let doc = |role: Role| match role {
            Role::Gateway => "Keeps the clients' connections, and their requests until answered.",
            Role::Router => "Sends each request to the mediator that leads its cell.",
            Role::Mediator => "Puts requests in order and matches them.",
            Role::Processor => "Transaction processor: sends replies and broadcasts out.",
        };
        types.add("Role", "A class of nodes.", |_| {
            let one = |role: &Role| Alternative {
                code: role.code(),
                name: format!("{role:?}"),
                doc: doc(*role).to_string(),
                fields: vec![],
            };
            Definition::Choice(Role::ALL.iter().map(one).collect())
        });
        "Role".to_string()
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        Role::ALL[random.below(Role::ALL.len() as u64) as usize].put(out);
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

/// A node. Its text is `mediator 0` in sentences, and `mediator:0` where somebody writes it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct NodeId {
    /// Its class.
    #[serde(rename = "role")]
    pub class: Role,
    /// Which one of its class.
    pub index: u16,
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

impl<'a> Value<'a> for NodeId {
    const SIZE: Option<usize> = Some(3);

    fn put(&self, out: &mut Vec<u8>) {
        self.class.put(out);
        self.index.put(out);
    }

    fn take(_field: &'static str, reader: &mut Reader<'a>) -> Result<NodeId, DecodeError> {
        let class = Role::take("role", reader)?;
        Ok(class.node(u16::take("index", reader)?))
    }

    fn describe(types: &mut Types) -> String {
        types.add("NodeId", "A node.", |types| {
            let field = |name: &str, type_name: String, size, doc: &str| Field {
                name: name.to_string(),
                type_name,
                size: Some(size),
                doc: doc.to_string(),
            };
            Definition::Record(vec![
                field("class", Role::describe(types), 1, "Its class."),
                field("index", u16::describe(types), 2, "Which one of its class."),
            ])
        });
        "NodeId".to_string()
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        Role::example(random, out);
        u16::example(random, out);
    }
}

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
