//! What a controller says by Redfish, and what it is told. Paths are those of its own answers.

use std::collections::BTreeMap;

use nm_model::firmware::Firmware;
use nm_model::limits;
use nm_settings::firmware::FIRMWARE;
use serde_json::{Value, json};

use crate::controller::{Answer, Controller};
use crate::error::FirmwareError;

/// Where every service begins.
const ROOT: &str = "/redfish/v1";

/// Most hosts of one controller.
const SYSTEMS_MAX: usize = 64;

/// Longest path, bytes.
const PATH_BYTES_MAX: usize = 1_024;

/// Longest message of a controller that is repeated, characters.
const MESSAGE_CHARS_MAX: usize = 300;

/// When a change is made that is staged.
const ON_RESET: &str = "OnReset";

/// The firmware of one host, and where it is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// What the controller says.
    pub firmware: Firmware,
    /// The host's identifier (SMBIOS), to be compared with that of a machine.
    pub uuid: Option<String>,
    /// Values in force with their kinds, by name.
    values: BTreeMap<String, Value>,
    staging: Option<Staging>,
}

/// Where settings wait for a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Staging {
    path: String,
    etag: Option<String>,
    /// The controller wants to be told when.
    takes_time: bool,
}

/// A setting that is to change, and the text that it has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The maker's name.
    pub name: String,
    /// What is in force.
    pub before: String,
    /// What is wanted.
    pub after: String,
}

/// Reads the firmware of a host.
///
/// # Errors
/// If the controller does not answer, refuses, or says what cannot be used.
pub fn read(controller: &mut impl Controller, system: Option<&str>) -> Result<Host, FirmwareError> {
    let root = document(controller, ROOT)?;
    let path = system_path(controller, &root, system)?;
    let system = document(controller, &path)?;
    let none = FirmwareError::NoSettings { path: path.clone(), status: 200 };
    let path = link(&system, &path, "/Bios")?.ok_or(none)?;
    let bios = match document(controller, &path) {
        Err(FirmwareError::Status { path, status, .. }) => {
            return Err(FirmwareError::NoSettings { path, status });
        }
        other => other?,
    };
    let values = values(&bios, &path)?;
    let attributes = texts(&values);
    let settings = bios.pointer("/@Redfish.Settings").unwrap_or(&Value::Null);
    let (staging, waiting) = match link(settings, &path, "/SettingsObject")? {
        None => (None, None),
        Some(place) => {
            let (waiting, etag) = waiting(controller, &place, &attributes)?;
            let times = &settings["SupportedApplyTimes"];
            let takes_time =
                times.as_array().is_some_and(|times| times.iter().any(|time| time == ON_RESET));
            (Some(Staging { path: place, etag, takes_time }), Some(waiting))
        }
    };
    let firmware = Firmware {
        manufacturer: text(&system, "/Manufacturer"),
        model: text(&system, "/Model"),
        bios_version: text(&system, "/BiosVersion"),
        controller: controller_text(controller, &system),
        attributes,
        waiting,
        is_this_machine: None,
    };
    let uuid = Some(text(&system, "/UUID")).filter(|uuid| !uuid.is_empty());
    Ok(Host { firmware, uuid, values, staging })
}

/// The path of the host that is meant.
fn system_path(
    controller: &mut impl Controller,
    root: &Value,
    wanted: Option<&str>,
) -> Result<String, FirmwareError> {
    let unusable = |path: &str, what: &str| FirmwareError::Document {
        path: path.to_string(),
        what: what.to_string(),
    };
    let list = link(root, ROOT, "/Systems")?.ok_or_else(|| unusable(ROOT, "it has no systems"))?;
    let systems = document(controller, &list)?;
    let members = systems["Members"].as_array().map_or(&[][..], Vec::as_slice);
    if members.len() > SYSTEMS_MAX {
        return Err(unusable(&list, "it has more than 64 systems"));
    }
    let mut paths = vec![];
    for member in members {
        paths.extend(link(member, &list, "")?);
    }
    let names: Vec<String> = paths.iter().map(|path| last(path).to_string()).collect();
    match (wanted, &paths[..]) {
        (Some(wanted), _) => {
            let place = names.iter().position(|name| name == wanted);
            place
                .map(|place| paths[place].clone())
                .ok_or_else(|| FirmwareError::NoSystem { wanted: wanted.to_string(), known: names })
        }
        (None, [one]) => Ok(one.clone()),
        (None, []) => Err(unusable(&list, "it has no system")),
        (None, _) => Err(FirmwareError::SeveralSystems(names)),
    }
}

/// The controller's model and version, as far as it tells them.
fn controller_text(controller: &mut impl Controller, system: &Value) -> String {
    let path = match link(&system["Links"], ROOT, "/ManagedBy/0") {
        Ok(Some(path)) => path,
        _ => return String::new(),
    };
    let manager = document(controller, &path).unwrap_or(Value::Null);
    let parts = [text(&manager, "/Model"), text(&manager, "/FirmwareVersion")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The settings that will be others after a restart, and the state of that list.
fn waiting(
    controller: &mut impl Controller,
    path: &str,
    in_force: &BTreeMap<String, String>,
) -> Result<(BTreeMap<String, String>, Option<String>), FirmwareError> {
    let answer = good(controller.get(path)?, path)?;
    let list = parsed(&answer.body, path)?;
    let etag =
        answer.etag.or_else(|| Some(text(&list, "/@odata.etag")).filter(|etag| !etag.is_empty()));
    // A list that is empty, absent or null has nothing that waits.
    let values = match list.pointer("/Attributes") {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(_) => values(&list, path)?,
    };
    let mut texts = texts(&values);
    texts.retain(|name, value| in_force.get(name) != Some(value));
    Ok((texts, etag.filter(|etag| etag.chars().all(|c| !c.is_control()))))
}

/// Only the settings that a check knows: the others may name the host, its disks and its owner.
pub fn known(firmware: &Firmware) -> Firmware {
    let mut copy = firmware.clone();
    let is_known = |name: &str| FIRMWARE.iter().any(|setting| setting.is_named(name));
    copy.attributes.retain(|name, _| is_known(name));
    if let Some(waiting) = &mut copy.waiting {
        waiting.retain(|name, _| is_known(name));
    }
    copy
}

impl Host {
    /// What would change if the settings had these values after a restart. What waits already does
    /// not change once more.
    ///
    /// # Errors
    /// If the firmware has no such setting, or the value is of another kind.
    pub fn changes(&self, wanted: &[(String, String)]) -> Result<Vec<Change>, FirmwareError> {
        let mut changes = self.changes_back(wanted)?;
        changes.retain(|change| {
            let waiting = self.firmware.waiting.as_ref().and_then(|list| list.get(&change.name));
            *waiting.unwrap_or(&change.before) != change.after
        });
        Ok(changes)
    }

    /// All of these, also what is in force: a controller may not tell what waits for a restart, and
    /// only a change takes that back.
    ///
    /// # Errors
    /// If the firmware has no such setting, or the value is of another kind.
    pub fn changes_back(&self, wanted: &[(String, String)]) -> Result<Vec<Change>, FirmwareError> {
        let change = |(name, value): &(String, String)| {
            self.kind(name, value)?;
            let before = self.firmware.attributes[name].clone();
            Ok(Change { name: name.clone(), before, after: value.clone() })
        };
        wanted.iter().map(change).collect()
    }

    /// The value as the controller writes those of this setting.
    fn kind(&self, name: &str, value: &str) -> Result<Value, FirmwareError> {
        let Some(now) = self.values.get(name) else {
            let mut names = self.values.keys();
            let same = |other: &&String| other.eq_ignore_ascii_case(name);
            let nearest = names.find(same).cloned();
            return Err(FirmwareError::NoAttribute { name: name.to_string(), nearest });
        };
        let other =
            |kind| FirmwareError::Kind { name: name.to_string(), kind, value: value.to_string() };
        match now {
            Value::Bool(_) => value.parse().map(Value::Bool).map_err(|_| other("true or false")),
            Value::Number(_) => {
                value.parse::<i64>().map(Value::from).map_err(|_| other("a number"))
            }
            _ => Ok(Value::from(value)),
        }
    }

    /// Has the controller set these at the next restart.
    ///
    /// # Errors
    /// If it refuses, or if no answer came: the settings may be staged then.
    pub fn stage(
        &self,
        controller: &mut impl Controller,
        changes: &[Change],
    ) -> Result<(), FirmwareError> {
        let staging = self.staging.as_ref().ok_or(FirmwareError::ReadOnly)?;
        let mut attributes = serde_json::Map::new();
        for change in changes {
            attributes.insert(change.name.clone(), self.kind(&change.name, &change.after)?);
        }
        let mut body = json!({ "Attributes": attributes });
        if staging.takes_time {
            body["@Redfish.SettingsApplyTime"] = json!({ "ApplyTime": ON_RESET });
        }
        let answer = controller.patch(&staging.path, staging.etag.as_deref(), &body)?;
        match answer.status {
            412 => Err(FirmwareError::Changed),
            _ => good(answer, &staging.path).map(drop),
        }
    }
}

/// The document at a path.
fn document(controller: &mut impl Controller, path: &str) -> Result<Value, FirmwareError> {
    let answer = controller.get(path)?;
    if path == ROOT && matches!(answer.status, 300..=499) && !matches!(answer.status, 401 | 403) {
        return Err(FirmwareError::NoRedfish { path: path.to_string(), status: answer.status });
    }
    parsed(&good(answer, path)?.body, path)
}

/// An answer that says that the request was fulfilled.
fn good(answer: Answer, path: &str) -> Result<Answer, FirmwareError> {
    let (path, status) = (path.to_string(), answer.status);
    match status {
        200..=299 => Ok(answer),
        401 | 403 => Err(FirmwareError::Login { path, status }),
        _ => Err(FirmwareError::Status { path, status, message: message(&answer.body) }),
    }
}

fn parsed(body: &[u8], path: &str) -> Result<Value, FirmwareError> {
    serde_json::from_slice(body).map_err(|error| FirmwareError::Document {
        path: path.to_string(),
        what: format!("it is no JSON: {error}"),
    })
}

/// What a controller says about a request that it does not fulfil.
fn message(body: &[u8]) -> String {
    let error: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let places = ["/error/@Message.ExtendedInfo/0/Message", "/error/message"];
    let found = places.into_iter().map(|place| text(&error, place)).find(|it| !it.is_empty());
    found.unwrap_or_default().chars().take(MESSAGE_CHARS_MAX).collect()
}

/// A text without control characters; empty if there is none.
fn text(document: &Value, place: &str) -> String {
    let text = document.pointer(place).and_then(Value::as_str).unwrap_or_default();
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.trim().chars().take(MESSAGE_CHARS_MAX).collect()
}

/// The path that `place` of a document, which was read at `at`, links to.
fn link(document: &Value, at: &str, place: &str) -> Result<Option<String>, FirmwareError> {
    let Some(path) = document.pointer(&format!("{place}/@odata.id")) else { return Ok(None) };
    let path = path.as_str().unwrap_or_default();
    let is_sign = |c: char| c.is_ascii_alphanumeric() || "/._~-:@()%+,=&".contains(c);
    let is_here = path.starts_with("/redfish/v1/") && path.len() <= PATH_BYTES_MAX;
    match is_here && path.chars().all(is_sign) && !path.split('/').any(|part| part == "..") {
        true => Ok(Some(path.to_string())),
        false => Err(FirmwareError::Document {
            path: at.to_string(),
            what: "it links to another place than its own service".to_string(),
        }),
    }
}

/// The last word of a path.
fn last(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// The settings of a document.
fn values(document: &Value, path: &str) -> Result<BTreeMap<String, Value>, FirmwareError> {
    let unusable = |what: String| FirmwareError::Document { path: path.to_string(), what };
    let Some(all) = document.pointer("/Attributes").and_then(Value::as_object) else {
        return Err(unusable("it has no attributes".to_string()));
    };
    if all.len() > limits::FIRMWARE_ATTRIBUTES_MAX {
        let max = limits::FIRMWARE_ATTRIBUTES_MAX;
        return Err(unusable(format!("it has {} settings, at most {max} are read", all.len())));
    }
    let is_simple = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
    let mut values = BTreeMap::new();
    for (name, value) in all.iter().filter(|(_, value)| is_simple(value)) {
        let longest = name.len().max(value.as_str().map_or(0, str::len));
        if longest > limits::FIRMWARE_TEXT_BYTES_MAX {
            return Err(unusable("a setting is longer than 4096 bytes".to_string()));
        }
        values.insert(name.clone(), value.clone());
    }
    Ok(values)
}

fn texts(values: &BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.chars().filter(|c| !c.is_control()).collect(),
        other => other.to_string(),
    };
    values.iter().map(|(name, value)| (name.clone(), text(value))).collect()
}

#[cfg(test)]
mod tests;
