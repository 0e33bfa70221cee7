//! The hosts of a fleet, from a list of words, a file of lines, or an Ansible inventory as
//! `ansible-inventory --list` prints it.
//!
//! A line is a destination of ssh, which may hold a range, then `=ADDRESS`, then labels:
//! `node[01-16]=10.0.0.[1-16] rack=7`. `[name]` begins a group, `#` a comment.

use std::collections::BTreeMap;

pub use crate::fleet_host::{FleetHost, HOSTS_MAX, HostsError, TEXT_BYTES_MAX};
use crate::fleet_host::{address_of, checked, fault, host};
use crate::inventory;
use crate::range::expand;

/// Most groups, and most labels, of a host.
const WORDS_MAX: usize = 64;

/// Reads a list of words, separated by commas outside of ranges.
///
/// # Errors
/// If it is none.
pub fn parse_list(text: &str) -> Result<Vec<FleetHost>, HostsError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(HostsError::TooLarge);
    }
    let mut depth = 0_i32;
    let is_comma = |c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth <= 0
    };
    let words: Vec<&str> = text.split(is_comma).map(str::trim).collect();
    let mut list = List::default();
    for (line, word) in (1..).zip(words) {
        list.add_line(line, word, &[])?;
    }
    list.finish()
}

/// Reads a file of lines, or an inventory, which begins with `{`.
///
/// # Errors
/// If it is neither.
pub fn parse_file(text: &str) -> Result<Vec<FleetHost>, HostsError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(HostsError::TooLarge);
    }
    if text.trim_start().starts_with('{') {
        let mut list = List::default();
        for host in inventory::hosts(text)? {
            list.add(0, host)?;
        }
        return list.finish();
    }
    let mut list = List::default();
    let mut group: Vec<String> = vec![];
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        if let Some(name) = text.strip_prefix('[') {
            let name = name.strip_suffix(']').unwrap_or_default();
            group = vec![checked(line, name, "group").map_err(|error| match name {
                "" => fault(line, text, "is no group; write `[name]`"),
                _ => error,
            })?];
        } else if !text.is_empty() {
            list.add_line(line, text, &group)?;
        }
    }
    list.finish()
}

/// The hosts so far, with the line of each.
#[derive(Default)]
struct List {
    hosts: Vec<FleetHost>,
    lines: BTreeMap<String, usize>,
}

impl List {
    fn add(&mut self, line: usize, host: FleetHost) -> Result<(), HostsError> {
        if self.hosts.len() == HOSTS_MAX {
            return Err(HostsError::TooMany);
        }
        if let Some(first) = self.lines.insert(host.name.clone(), line) {
            let where_else = format!("stands in line {first} already; name each host once");
            return Err(fault(line, &host.name, where_else));
        }
        self.hosts.push(host);
        Ok(())
    }

    /// `name[=address] [label=value …]`.
    fn add_line(&mut self, line: usize, text: &str, groups: &[String]) -> Result<(), HostsError> {
        let mut words = text.split_whitespace();
        let first = words.next().unwrap_or_default();
        let labels = labels(line, words)?;
        let (name, address) = match first.rsplit_once('=') {
            Some((name, address)) => (name, Some(address)),
            None => (first, None),
        };
        let refused =
            |why: String| fault(line, first, format!("{why}; write a name as ssh has it"));
        let names = expand(name).map_err(refused)?;
        let addresses = match address {
            None => vec![],
            Some(address) => expand(address).map_err(refused)?,
        };
        if address.is_some() && addresses.len() != names.len() {
            let (names, addresses) = (names.len(), addresses.len());
            return Err(fault(
                line,
                first,
                format!(
                    "has {names} names and {addresses} addresses; give each name one, such as \
                     `node[1-4]=10.0.0.[1-4]`"
                ),
            ));
        }
        for (at, name) in names.iter().enumerate() {
            let address = addresses.get(at).map(|one| address_of(line, one)).transpose()?;
            let host = host(line, name, name.clone(), address)?;
            self.add(line, FleetHost { groups: groups.to_vec(), labels: labels.clone(), ..host })?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<FleetHost>, HostsError> {
        match self.hosts.len() {
            0 => Err(HostsError::TooFew("no host".into())),
            1 => Err(HostsError::TooFew(format!("one host, {}", self.hosts[0].name))),
            _ => Ok(self.hosts),
        }
    }
}

fn labels<'t>(
    line: usize,
    words: impl Iterator<Item = &'t str>,
) -> Result<BTreeMap<String, String>, HostsError> {
    let mut labels = BTreeMap::new();
    for word in words {
        let (name, value) = word.split_once('=').ok_or_else(|| {
            fault(line, word, "is no label; write `name=value`, and one host a line")
        })?;
        labels.insert(checked(line, name, "label")?, checked(line, value, "label's value")?);
        if labels.len() > WORDS_MAX {
            return Err(fault(
                line,
                word,
                format!("is one label too many; {WORDS_MAX} are the most"),
            ));
        }
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_has_ranges_and_addresses() {
        let hosts = parse_list("node[1,3-4], u@h=192.0.2.9,n[1-2]=10.0.0.[7-8]").unwrap();
        let specs: Vec<String> = hosts.iter().map(FleetHost::spec).collect();
        assert_eq!(
            specs,
            ["node1", "node3", "node4", "u@h=192.0.2.9", "n1=10.0.0.7", "n2=10.0.0.8"]
        );
    }

    #[test]
    fn a_file_has_groups_labels_and_comments() {
        let text =
            "# the rack\nfirst\n[west]\nw[01-02] rack=7 psu=a  # two\n\n[east]\ne1=2001:db8::1\n";
        let hosts = parse_file(text).unwrap();
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["first", "w01", "w02", "e1"]);
        assert!(hosts[0].groups.is_empty());
        assert_eq!((hosts[2].groups[0].as_str(), hosts[2].labels["rack"].as_str()), ("west", "7"));
        assert_eq!(hosts[3].spec(), "e1=2001:db8::1");
    }

    #[test]
    fn bad_input_is_one_sentence_with_line_and_remedy() {
        for (text, words) in [
            ("", "the list has no host; a fleet has two hosts or more"),
            ("a\n", "the list has one host, a; a fleet"),
            ("a\nb c\n", "line 2: `c` is no label; write `name=value`"),
            ("a\n-oProxyCommand=x\n", "line 2:"),
            ("a\n-o\n", "line 2: `-o` is no destination of ssh; write a name"),
            ("a\nb=nowhere\n", "line 2: `nowhere` is no IP address of a host; write NAME"),
            ("a\nb=0.0.0.0\n", "line 2: `0.0.0.0` is no IP address of a host"),
            ("a\nb\na\n", "line 3: `a` stands in line 1 already; name each host once"),
            ("n[1-3]=10.0.0.[1-2]\n", "line 1: `n[1-3]=10.0.0.[1-2]` has 3 names and 2 addresses"),
            ("a\n[west\nb\n", "line 2: `[west` is no group; write `[name]`"),
            ("n[9-1]\n", "line 1: `n[9-1]` has `[9-1]`, which counts down"),
            ("a[1-600]\nb[1-600]\n", "more than 1024 hosts; split it"),
        ] {
            let error = parse_file(text).unwrap_err().to_string();
            assert!(error.starts_with(words) || error.contains(words), "{text:?}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        assert_eq!(parse_file(&" ".repeat(TEXT_BYTES_MAX + 1)), Err(HostsError::TooLarge));
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_refused(text in "(?s).{0,200}") {
            for hosts in [parse_file(&text), parse_list(&text)].into_iter().flatten() {
                prop_assert!((2..=HOSTS_MAX).contains(&hosts.len()));
                prop_assert!(hosts.iter().all(|host| !host.ssh.starts_with('-')));
            }
        }
    }
}
