//! A value of the wrong type in a plan, in words: which key, what it is, and what to write instead.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Decodes a table of keys.
///
/// # Errors
/// A sentence, which names the key whose value has the wrong type.
pub(crate) fn decode<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, String> {
    let decoded = serde_json::from_value(Value::Object(fields.clone()));
    decoded.map_err(|error| {
        let fault = fields.into_iter().find_map(|(key, value)| {
            let alone = Map::from_iter([(key.clone(), value)]);
            serde_json::from_value::<T>(Value::Object(alone)).err().map(|error| (key, error))
        });
        match fault {
            Some((key, error)) => sentence(&key, &error.to_string()),
            None => error.to_string(),
        }
    })
}

/// Decodes the value of one key.
///
/// # Errors
/// A sentence, which names the key if its value has the wrong type.
pub(crate) fn decode_one<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| sentence(key, &error.to_string()))
}

/// What is wrong with the value of `key`, by the message of serde: in words if it is about a type,
/// else the message as it is.
pub(crate) fn sentence(key: &str, message: &str) -> String {
    in_words(key, message).unwrap_or_else(|| message.to_string())
}

/// What is wrong with a number without a fraction that its type cannot have.
pub(crate) fn out_of_range(key: &str, number: &str) -> String {
    match number.starts_with('-') {
        true => format!("`{key}` is {number}, but must not be negative"),
        false => format!("`{key}` is {number}, which is too large"),
    }
}

fn in_words(key: &str, message: &str) -> Option<String> {
    let rest = message.strip_prefix("invalid type: ").or(message.strip_prefix("invalid value: "))?;
    let (found, expected) = rest.split_once(", expected ")?;
    let expected = expected.split(" at line ").next().unwrap_or(expected).trim();
    let wanted = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => "a number without a fraction",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "text in quotes",
        list if list.starts_with("a sequence") => "a list in square brackets",
        _ => return None,
    };
    if let Some(text) = found.strip_prefix("string \"").and_then(|text| text.strip_suffix('"')) {
        if expected != "a string" && is_literal(text) && !wanted.starts_with("a list") {
            return Some(format!(
                "`{key}` is \"{text}\", which is text because of its quotes; write {text} without \
                 quotes"
            ));
        }
        return Some(format!("`{key}` is \"{text}\", but must be {wanted}"));
    }
    let shown = found.split('`').nth(1).unwrap_or(found);
    if found.starts_with("integer") && expected.starts_with('u') {
        return Some(out_of_range(key, shown));
    }
    Some(format!("`{key}` is {shown}, but must be {wanted}"))
}

/// Whether TOML reads `text` without quotes as a number or as true or false.
fn is_literal(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite) || text.parse::<bool>().is_ok()
}

/// The key of a line of TOML.
pub(crate) fn key_of_line(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let key = key.trim();
    (!key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "_-".contains(c))).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::PingpongSpec;

    #[test]
    fn wrong_types_are_named_with_their_key_and_the_right_form() {
        let refused = |text: &str| {
            let Value::Object(fields) = serde_json::from_str(text).unwrap() else {
                panic!("{text}")
            };
            decode::<PingpongSpec>(fields).unwrap_err()
        };
        assert_eq!(
            refused(r#"{"max_iterations": 5, "max_ms": "500"}"#),
            "`max_ms` is \"500\", which is text because of its quotes; write 500 without quotes"
        );
        assert_eq!(
            refused(r#"{"max_ms": "fast"}"#),
            "`max_ms` is \"fast\", but must be a number without a fraction"
        );
        assert_eq!(
            refused(r#"{"sizes": 64}"#),
            "`sizes` is 64, but must be a list in square brackets"
        );
        assert_eq!(
            refused(r#"{"max_ms": 0.5}"#),
            "`max_ms` is 0.5, but must be a number without a fraction"
        );
        assert_eq!(refused(r#"{"max_ms": -5}"#), "`max_ms` is -5, but must not be negative");
        let list = decode_one::<Vec<u32>>("sizes", serde_json::json!("1")).unwrap_err();
        assert_eq!(list, "`sizes` is \"1\", but must be a list in square brackets");
    }

    #[test]
    fn other_messages_stay_as_they_are() {
        assert_eq!(sentence("probe", "unknown probe `x`"), "unknown probe `x`");
        assert_eq!(key_of_line("rounds = \"5\""), Some("rounds"));
        assert_eq!(key_of_line("[[trials]]"), None);
    }
}
