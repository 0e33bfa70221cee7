//! What the bytes of values are, for the documentation and the digest.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A field of a message or of a type.
#[derive(Debug, Clone)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Name of its type.
    pub type_name: String,
    /// How many bytes it has; none if that depends on its value.
    pub size: Option<usize>,
    /// What it means.
    pub doc: String,
}

/// One of the alternatives of a type.
#[derive(Debug, Clone)]
pub struct Alternative {
    /// The byte that chooses it.
    pub code: u8,
    /// Its name.
    pub name: String,
    /// What it means.
    pub doc: String,
    /// What follows the byte.
    pub fields: Vec<Field>,
}

/// What the bytes of a type are.
#[derive(Debug, Clone)]
pub enum Definition {
    /// Fields one after another.
    Record(Vec<Field>),
    /// A byte, and what follows it.
    Choice(Vec<Alternative>),
}

/// A type that has a name.
#[derive(Debug, Clone)]
pub struct NamedType {
    /// What it is for.
    pub doc: String,
    /// Its bytes.
    pub definition: Definition,
}

/// The types that have a definition of their own, by name.
#[derive(Debug, Clone, Default)]
pub struct Types(pub BTreeMap<String, NamedType>);

impl Types {
    /// Adds a type, if it is not there; `define` may add those that it consists of.
    pub fn add(&mut self, name: &str, doc: &str, define: impl FnOnce(&mut Types) -> Definition) {
        if !self.0.contains_key(name) {
            let definition = define(self);
            let known = NamedType { doc: prose(doc), definition };
            self.0.insert(name.to_string(), known);
        }
    }
}

/// The text of a documentation comment as one line, without the marks of links.
pub fn prose(doc: &str) -> String {
    let words = doc.split_whitespace().collect::<Vec<_>>().join(" ");
    words.replace("[`", "`").replace("`]", "`")
}

/// Appends what the digest covers of fields: names, types and order, not what they mean.
pub fn write_fields(fields: &[Field], out: &mut String) {
    for Field { name, type_name, .. } in fields {
        let _ = write!(out, " {name}:{type_name}");
    }
}

/// Appends what the digest covers of types.
pub fn write_types(types: &Types, out: &mut String) {
    for (name, NamedType { definition, .. }) in &types.0 {
        out.push_str(name);
        match definition {
            Definition::Record(fields) => write_fields(fields, out),
            Definition::Choice(alternatives) => {
                for Alternative { code, name, fields, .. } in alternatives {
                    let _ = write!(out, " {code}={name}");
                    write_fields(fields, out);
                }
            }
        }
        out.push('\n');
    }
}
