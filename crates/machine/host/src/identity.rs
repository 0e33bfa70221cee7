//! Addresses and identifiers in texts, replaced by numbered ones of the same form.

use std::collections::BTreeMap;

/// Digits from which on a hexadecimal number is taken for an identifier. Masks of CPUs and of
/// capabilities are shorter.
const DIGITS_MIN: usize = 32;

/// Lengths of the groups of a UUID.
const UUID: [usize; 5] = [8, 4, 4, 4, 12];

/// Identifiers that were replaced, each always by the same.
#[derive(Debug, Default)]
pub struct Identities {
    known: BTreeMap<String, usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Uuid,
    Hardware,
    Digits,
    Internet,
}

impl Identities {
    /// `text` with its UUIDs, hardware addresses and long hexadecimal numbers replaced.
    pub fn replace(&mut self, text: &str) -> String {
        replaced(text, |form, found| match form {
            Form::Internet => None,
            form => Some(self.one(form, found)),
        })
    }

    fn one(&mut self, form: Form, found: &str) -> String {
        // These name nothing.
        if found.bytes().all(|c| b"0:-".contains(&c)) || found.eq_ignore_ascii_case(BROADCAST) {
            return found.to_string();
        }
        let next = self.known.len() + 1;
        let number = *self.known.entry(found.to_ascii_lowercase()).or_insert(next);
        match form {
            Form::Uuid => format!("00000000-0000-4000-8000-{number:012x}"),
            Form::Hardware => {
                let [_, _, _, _, a, b, c, d] = (number as u64).to_be_bytes();
                format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
            }
            _ => format!("{number:0width$x}", width = found.len()),
        }
    }
}

const BROADCAST: &str = "ff:ff:ff:ff:ff:ff";

/// `text` without its Internet addresses (version 4).
pub fn without_address(text: &str) -> String {
    replaced(text, |form, _| (form == Form::Internet).then(|| "0.0.0.0".to_string()))
}

/// `text` with what `other` gives for each identifier.
fn replaced(text: &str, mut other: impl FnMut(Form, &str) -> Option<String>) -> String {
    let mut result = String::with_capacity(text.len());
    let (mut rest, mut is_begin) = (text, true);
    while let Some(first) = rest.chars().next() {
        let found = is_begin.then(|| identifier(rest)).flatten();
        let new = found.and_then(|(form, length)| Some((other(form, &rest[..length])?, length)));
        let length = match new {
            Some((new, length)) => {
                result += &new;
                length
            }
            None => {
                result.push(first);
                first.len_utf8()
            }
        };
        is_begin = !rest[..length].ends_with(|c: char| c.is_ascii_alphanumeric());
        rest = &rest[length..];
    }
    result
}

/// The identifier that `text` begins with, and its length.
fn identifier(text: &str) -> Option<(Form, usize)> {
    let forms = [
        (Form::Uuid, uuid(text)),
        (Form::Hardware, hardware(text)),
        (Form::Digits, Some(hex_digits(text)).filter(|n| *n >= DIGITS_MIN)),
        (Form::Internet, internet(text)),
    ];
    let ends = |length: &usize| !text[*length..].starts_with(|c: char| c.is_ascii_alphanumeric());
    forms.into_iter().find_map(|(form, length)| Some((form, length.filter(ends)?)))
}

fn hex_digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_hexdigit).count()
}

fn uuid(text: &str) -> Option<usize> {
    let mut at = 0;
    for (index, length) in UUID.into_iter().enumerate() {
        // libvirt and control groups write `_` for `-` as well.
        if index > 0 {
            text[at..].strip_prefix(['-', '_'])?;
            at += 1;
        }
        if hex_digits(&text[at..]) != length {
            return None;
        }
        at += length;
    }
    Some(at)
}

fn hardware(text: &str) -> Option<usize> {
    let parts: Vec<&str> = text.get(..17)?.split(':').collect();
    let is_pair = |part: &&str| part.len() == 2 && hex_digits(part) == 2;
    (parts.len() == 6 && parts.iter().all(is_pair)).then_some(17)
}

fn internet(text: &str) -> Option<usize> {
    let length = text.bytes().take_while(|c| c.is_ascii_digit() || *c == b'.').count();
    let address = text[..length].trim_end_matches('.');
    address.parse::<std::net::Ipv4Addr>().ok().map(|_| address.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_replaced_each_always_by_the_same() {
        let mut identities = Identities::default();
        assert_eq!(
            identities.replace("mac aa:BB:cc:01:02:03, again AA:bb:cc:01:02:03."),
            "mac 02:00:00:00:00:01, again 02:00:00:00:00:01."
        );
        assert_eq!(
            identities.replace("pod520b46e9 pod-520b46e9-fefe-4705-ab69-8ba5b621ea48.slice"),
            "pod520b46e9 pod-00000000-0000-4000-8000-000000000002.slice"
        );
        let id = "0ce64d11616057afada3aa12f446a0c6";
        assert_eq!(
            identities.replace(&format!("docker-{id}.scope")),
            format!("docker-{:032x}.scope", 3)
        );
    }

    #[test]
    fn masks_versions_and_names_are_kept() {
        let mut identities = Identities::default();
        for text in [
            "ffffffff,ffffffff",
            "CapEff:\t000001fffeffffff",
            "6.18.44-1",
            "0000:00:03.0",
            "00:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
            "größe µs",
            "10.0.0.1",
        ] {
            assert_eq!(identities.replace(text), text);
        }
        assert_eq!(without_address("10.0.0.1:eth0:255.255.255.0"), "0.0.0.0:eth0:0.0.0.0");
        assert_eq!(without_address("6.18.44"), "6.18.44");
    }
}
