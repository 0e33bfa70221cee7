//! `docs/wire.md`, and the digest of the format: both follow from the table of messages.

use std::fmt::Write;

use crate::frame::{self, FRAME_BYTES_MAX, PREFIX, PREFIX_BYTES, Shape, VERSION};
use crate::row::Row;
use crate::types::{self, Alternative, Definition, Field, NamedType, Types};

/// What the document says beside the tables. A line that is a name in braces is replaced by one.
const GUIDE: &str = include_str!("guide.md");

/// The types of these messages, and of all that they consist of.
fn types_of(rows: &[Row]) -> Types {
    let mut types = Types::default();
    rows.iter().for_each(|row| (row.describe)(&mut types));
    types
}

/// Digest of the frames, of these messages and of their types: 64-bit FNV-1a of a text that has
/// their names, codes and types in order. What fields mean is no part of it.
pub fn digest_of(rows: &[Row]) -> u64 {
    let mut text = String::new();
    for (name, offset, size, _) in PREFIX {
        let _ = writeln!(text, "{name} {offset} {size}");
    }
    for Row { code, name, .. } in rows {
        let _ = writeln!(text, "{code} {name}");
    }
    types::write_types(&types_of(rows), &mut text);
    nm_codec::fnv1a(text.as_bytes())
}

/// The documentation of these messages, as Markdown.
pub fn document(rows: &[Row]) -> String {
    let types = types_of(rows);
    let mut out = String::new();
    for line in GUIDE.lines() {
        match line {
            "{prefix}" => prefix(&mut out),
            "{kinds}" => kinds(rows, &mut out),
            "{messages}" => rows.iter().for_each(|row| message(row, &types, &mut out)),
            "{types}" => all_types(rows, &types, &mut out),
            _ => {
                let line = line
                    .replace("{version}", &VERSION.to_string())
                    .replace("{digest}", &format!("0x{:016x}", digest_of(rows)))
                    .replace("{frame_bytes_max}", &FRAME_BYTES_MAX.to_string());
                let _ = writeln!(out, "{line}");
            }
        }
    }
    out
}

fn prefix(out: &mut String) {
    out.push_str("| offset | size | type | field | meaning |\n| ---: | ---: | --- | --- | --- |\n");
    for (name, offset, size, meaning) in PREFIX {
        let _ = writeln!(out, "| {offset} | {size} | u{} | `{name}` | {meaning} |", size * 8);
    }
}

fn kinds(rows: &[Row], out: &mut String) {
    out.push_str("| kind | message | from whom to whom |\n| ---: | --- | --- |\n");
    for row in rows {
        let Row { name, code, .. } = row;
        let anchor = name.to_lowercase();
        let _ = writeln!(out, "| {code} | [{name}](#{anchor}) | {} |", row.ways_text());
    }
}

/// The section of a message.
fn message(row: &Row, types: &Types, out: &mut String) {
    let Some(NamedType { doc, definition }) = types.0.get(row.name) else {
        unreachable!("{} is a message", row.name);
    };
    let _ = writeln!(out, "### {}\n\nKind {}: {}.\n\n{doc}\n", row.name, row.code, row.ways_text());
    match definition {
        Definition::Record(fields) => table(fields, PREFIX_BYTES, out),
        Definition::Choice(alternatives) => {
            let _ = writeln!(out, "At offset {PREFIX_BYTES} a byte says which it is.\n");
            choice(alternatives, out);
        }
    }
    out.push('\n');
    let mut bytes = vec![];
    let example = row.example_of(u64::from(row.code));
    frame::write_with(row.code, Shape::default(), &mut bytes, |out| out.extend(&example));
    out.push_str("A frame:\n\n```text\n");
    for line in bytes.chunks(32) {
        let words = line.chunks(4).map(|word| {
            word.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        });
        let _ = writeln!(out, "{}", words.collect::<Vec<_>>().join(" "));
    }
    out.push_str("```\n\n");
}

/// Fields with offset, as far as it is fixed.
fn table(fields: &[Field], start: usize, out: &mut String) {
    out.push_str("| offset | size | type | field | meaning |\n| ---: | ---: | --- | --- | --- |\n");
    let mut offset = Some(start);
    for Field { name, type_name, size, doc } in fields {
        let at = offset.map_or("behind".to_string(), |offset| offset.to_string());
        let bytes = size.map_or("varies".to_string(), |size| size.to_string());
        let _ = writeln!(out, "| {at} | {bytes} | {type_name} | `{name}` | {doc} |");
        offset = offset.zip(*size).map(|(offset, size)| offset + size);
    }
}

/// The types that are no messages.
fn all_types(rows: &[Row], types: &Types, out: &mut String) {
    let is_message = |name: &str| rows.iter().any(|row| row.name == name);
    let all = types.0.iter().filter(|(name, _)| !is_message(name));
    for (name, NamedType { doc, definition }) in all {
        let _ = writeln!(out, "### {name}\n\n{doc}\n");
        match definition {
            Definition::Record(fields) => table(fields, 0, out),
            Definition::Choice(alternatives) => choice(alternatives, out),
        }
        out.push('\n');
    }
}

fn choice(alternatives: &[Alternative], out: &mut String) {
    out.push_str("| byte | name | meaning | what follows it |\n| ---: | --- | --- | --- |\n");
    for Alternative { code, name, doc, fields } in alternatives {
        let field = |it: &Field| format!("`{}` {}: {}", it.name, it.type_name, it.doc);
        let fields = fields.iter().map(field).collect::<Vec<_>>().join("<br>");
        let fields = if fields.is_empty() { "nothing".to_string() } else { fields };
        let _ = writeln!(out, "| {code} | `{name}` | {doc} | {fields} |");
    }
}
