//! Manifests as YAML. Every text is quoted or a literal block. So no parser takes it for a number,
//! a truth value or a tag, as those of YAML 1.1 take `on`.

use serde_json::Value;

/// Documents, one after the other.
pub(super) fn documents(documents: &[Value]) -> String {
    documents.iter().map(|document| format!("---\n{}", block(document, 0))).collect()
}

/// A value that begins on a line of its own.
fn block(value: &Value, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| format!("{indent}{}:{}", key(name), after(value, depth)))
            .collect(),
        Value::Array(items) => items
            .iter()
            .map(|item| {
                let text = block(item, depth + 1);
                // The first field stands beside the dash.
                format!("{indent}- {}", text.trim_start())
            })
            .collect(),
        _ => format!("{indent}{}\n", scalar(value)),
    }
}

/// A value behind its name.
fn after(value: &Value, depth: usize) -> String {
    match value {
        Value::Object(fields) if fields.is_empty() => " {}\n".to_string(),
        Value::Array(items) if items.is_empty() => " []\n".to_string(),
        Value::Object(_) | Value::Array(_) => format!("\n{}", block(value, depth + 1)),
        Value::String(text) if is_literal(text) => {
            let indent = "  ".repeat(depth + 1);
            let line = |line: &str| match line {
                "" => "\n".to_string(),
                _ => format!("{indent}{line}\n"),
            };
            format!(" |\n{}", text.lines().map(line).collect::<String>())
        }
        _ => format!(" {}\n", scalar(value)),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// Names of Kubernetes are plain; labels of users may be words that YAML 1.1 takes for others.
fn key(name: &str) -> String {
    const TAKEN: [&str; 9] = ["y", "n", "on", "off", "yes", "no", "true", "false", "null"];
    let is_plain = !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphabetic())
        && !TAKEN.contains(&name.to_ascii_lowercase().as_str());
    if is_plain { name.to_string() } else { quoted(name) }
}

/// A text in double quotes, of printable ASCII alone.
pub(super) fn quoted(text: &str) -> String {
    let mut all = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => all.extend(['\\', c]),
            '\n' => all += "\\n",
            ' '..='~' => all.push(c),
            _ if u32::from(c) <= 0xffff => all += &format!("\\u{:04x}", u32::from(c)),
            _ => all += &format!("\\U{:08x}", u32::from(c)),
        }
    }
    all + "\""
}

/// Whether a text of lines is the same as a literal block.
fn is_literal(text: &str) -> bool {
    let is_kept = |c: char| match c {
        '\n' | ' '..='~' => true,
        '\u{a0}'..='\u{ffff}' => !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}'),
        _ => false,
    };
    text.ends_with('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\n'])
        && text.chars().all(is_kept)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yaml_rust2::{Yaml, YamlLoader};

    use super::*;

    #[test]
    fn every_text_is_read_back_as_it_was() {
        let long = "x".repeat(3_000);
        let texts = [
            "",
            "on",
            "no",
            "1_000",
            "12:30",
            "0x1f",
            "1e3",
            "~",
            "!!str",
            "*a",
            "a: b # c",
            "'",
            "\"\\",
            "a\nb",
            "a\nb\n",
            "a\n\n  b\n",
            " a\n",
            "\n",
            "a\n\n",
            "a\t\u{1}\u{7f}\n",
            "µs ✓\n",
            "\u{2028}\u{feff}\u{85}",
            "🦀\n",
            "--- \n...\n",
            "{{x}} $(y)",
            &long,
        ];
        for text in texts {
            // A key has at most 1,024 letters.
            let name = if text.len() > 1_000 { "long" } else { text };
            let value =
                json!({ name: { "value": text, "list": [text, { "inner": text, "n": 1 }] } });
            let written = documents(&[value]);
            let read = YamlLoader::load_from_str(&written).unwrap();
            let string = |node: &Yaml| node.as_str().map(str::to_string);
            let found = &read[0][name];
            for node in [&found["value"], &found["list"][0], &found["list"][1]["inner"]] {
                assert_eq!(string(node).as_deref(), Some(text), "{written}");
            }
            assert_eq!(found["list"][1]["n"].as_i64(), Some(1), "{written}");
        }
    }
}
