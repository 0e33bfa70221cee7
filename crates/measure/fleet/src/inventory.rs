//! Ansible inventories, as `ansible-inventory --list` prints them.
//!
//! `{"_meta": {"hostvars": {H: {…}}}, "all": {"children": […]}, "lat": {"hosts": […]}}`. Unknown
//! keys are ignored; a group without hosts has no `hosts`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::fleet_host::{FleetHost, HostsError, address_of, host};

/// Variable with the address of the path that is measured.
const ADDRESS: &str = "nearmetal_address";

/// Groups that Ansible makes itself.
const OWN_GROUPS: [&str; 2] = ["all", "ungrouped"];

fn refused(place: String, fault: &str) -> HostsError {
    HostsError::Inventory { place, fault: fault.to_string() }
}

/// The hosts of an inventory, by name.
pub(crate) fn hosts(text: &str) -> Result<Vec<FleetHost>, HostsError> {
    let root: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| HostsError::Json { line: error.line(), fault: error.to_string() })?;
    let variables =
        root.get("_meta").and_then(|meta| meta.get("hostvars")).and_then(Value::as_object);
    let mut groups_of: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (group, content) in root.iter().filter(|(name, _)| *name != "_meta") {
        // An own script may print a list in place of an object.
        let Some(hosts) = content.get("hosts").or(Some(content)).and_then(Value::as_array) else {
            continue;
        };
        for name in hosts {
            let name = name.as_str().ok_or_else(|| {
                refused(format!("group `{group}`"), "has a host that is no text; write its name")
            })?;
            let groups = groups_of.entry(name).or_default();
            if !OWN_GROUPS.contains(&group.as_str()) {
                groups.push(group.clone());
            }
        }
    }
    let named = groups_of.into_iter().map(|(name, groups)| {
        let of_host = variables.and_then(|all| all.get(name)).and_then(Value::as_object);
        one(name, groups, of_host)
    });
    named.collect()
}

fn one(
    name: &str,
    groups: Vec<String>,
    variables: Option<&Map<String, Value>>,
) -> Result<FleetHost, HostsError> {
    let text = |key: &str| match variables.and_then(|all| all.get(key)) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let place = || format!("host `{}`", name.escape_debug());
    if text("ansible_connection").is_some_and(|kind| kind != "ssh" && kind != "smart") {
        return Err(refused(place(), "is not reached by ssh; take it out of the inventory"));
    }
    let reached = text("ansible_host").unwrap_or_else(|| name.to_string());
    let user = text("ansible_user").map_or(String::new(), |user| format!("{user}@"));
    let ssh = match text("ansible_port").filter(|port| port != "22") {
        Some(port) if reached.contains(':') => format!("ssh://{user}[{reached}]:{port}"),
        Some(port) => format!("ssh://{user}{reached}:{port}"),
        None => format!("{user}{reached}"),
    };
    let in_place = |error: HostsError| match error {
        HostsError::Line { word, fault, .. } => {
            refused(place(), &format!("has `{word}`, which {fault}"))
        }
        other => other,
    };
    let address = text(ADDRESS).map(|text| address_of(0, &text)).transpose().map_err(in_place)?;
    let host = host(0, name, ssh, address).map_err(in_place)?;
    Ok(FleetHost { groups, ..host })
}

#[cfg(test)]
mod tests {
    use crate::hosts::{FleetHost, parse_file};

    #[test]
    fn an_inventory_is_read_as_it_is() {
        let text = r#"{"_meta": {"hostvars": {
            "h1": {"ansible_host": "192.0.2.1", "ansible_user": "root", "ansible_port": 2222},
            "h2": {"nearmetal_address": "10.0.0.2", "x": [1]}}, "profile": "inventory_legacy"},
            "all": {"children": ["ungrouped", "lat", "empty"]}, "empty": {},
            "lat": {"hosts": ["h1", "h2"]}, "fast": ["h1"], "ungrouped": {"hosts": ["h3"]}}"#;
        let hosts = parse_file(text).unwrap();
        let specs: Vec<String> = hosts.iter().map(FleetHost::spec).collect();
        assert_eq!(specs, ["ssh://root@192.0.2.1:2222", "h2=10.0.0.2", "h3"]);
        assert_eq!(hosts[0].groups, ["fast", "lat"]);
        assert!(hosts[2].groups.is_empty() && hosts[0].name == "h1");
    }

    #[test]
    fn what_is_no_inventory_is_refused_with_its_place() {
        for (text, words) in [
            ("{\n \"a\": {\"hosts\": [\"h1\",]}}", "line 2: the inventory is not JSON"),
            (r#"{"a": {"hosts": [1]}}"#, "group `a` has a host that is no text; write its name"),
            (
                r#"{"a": {"hosts": ["h"]},
                    "_meta": {"hostvars": {"h": {"ansible_connection": "local"}}}}"#,
                "host `h` is not reached by ssh; take it out",
            ),
            (
                r#"{"a": {"hosts": ["h"]}, "_meta": {"hostvars": {"h": {"ansible_host": "-oX"}}}}"#,
                "host `h` has `-oX`, which is no destination of ssh; write a name",
            ),
            (r#"{"a": {"children": ["b"]}}"#, "the list has no host"),
        ] {
            let error = parse_file(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
