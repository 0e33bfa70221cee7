//! A controller of the tests, and what is read of it and sent to it.

use super::*;

/// A controller of a maker: its documents, the state of its list of settings, and what was sent.
#[derive(Default)]
struct Fake {
    documents: BTreeMap<String, Value>,
    status: BTreeMap<String, u16>,
    etag: Option<String>,
    sent: Vec<(String, Option<String>, Value)>,
}

impl Controller for Fake {
    fn get(&mut self, path: &str) -> Result<Answer, FirmwareError> {
        let etag = self.etag.clone();
        let found = self.documents.get(path);
        let status = self.status.get(path).copied();
        let status = status.unwrap_or(if found.is_some() { 200 } else { 404 });
        let body = found.map_or(vec![], |document| document.to_string().into_bytes());
        Ok(Answer { status, etag, body })
    }

    fn patch(
        &mut self,
        path: &str,
        etag: Option<&str>,
        body: &Value,
    ) -> Result<Answer, FirmwareError> {
        self.sent.push((path.to_string(), etag.map(str::to_string), body.clone()));
        let status = if etag == self.etag.as_deref() { 202 } else { 412 };
        Ok(Answer { status, etag: None, body: vec![] })
    }
}

fn at(path: &str) -> Value {
    json!({ "@odata.id": path })
}

/// A host whose settings lie at `bios`, and wait for a restart at `pending`.
fn host(bios: &str, pending: Option<&str>, attributes: Value, waiting: Value) -> Fake {
    let mut fake = Fake::default();
    let mut put = |path: &str, document: Value| {
        fake.documents.insert(path.to_string(), document);
    };
    put(ROOT, json!({ "Systems": at("/redfish/v1/Systems") }));
    put("/redfish/v1/Systems", json!({ "Members": [at("/redfish/v1/Systems/1")] }));
    put(
        "/redfish/v1/Systems/1",
        json!({
            "Manufacturer": "Maker", "Model": "Server 7\u{1b}[2J", "BiosVersion": "1.2",
            "UUID": "4C4C", "SerialNumber": "S3CR3T", "Bios": at(bios),
            "Links": { "ManagedBy": [at("/redfish/v1/Managers/1")] },
        }),
    );
    put("/redfish/v1/Managers/1", json!({ "Model": "BMC", "FirmwareVersion": "6.1" }));
    let settings = match pending {
        Some(path) => {
            json!({ "SettingsObject": at(path), "SupportedApplyTimes": ["OnReset", "Immediate"] })
        }
        None => json!({}),
    };
    put(bios, json!({ "Attributes": attributes, "@Redfish.Settings": settings }));
    if let Some(path) = pending {
        put(path, json!({ "Attributes": waiting }));
    }
    fake
}

/// Lenovo's and Supermicro's controllers have other paths than Dell's; all name them.
#[test]
fn paths_are_those_that_the_controller_names() {
    for pending in ["/redfish/v1/Systems/1/Bios/Pending", "/redfish/v1/systems/1/bios/settings/"] {
        let attributes = json!({ "ProcCStates": "Enabled", "NumaNodesPerSocket": 4, "A": null });
        let waiting = json!({ "ProcCStates": "Disabled", "NumaNodesPerSocket": 4 });
        let mut fake = host("/redfish/v1/Systems/1/BIOS", Some(pending), attributes, waiting);
        let found = read(&mut fake, None).unwrap();
        let firmware = &found.firmware;
        assert_eq!(
            (firmware.model.as_str(), firmware.controller.as_str()),
            ("Server 7[2J", "BMC 6.1")
        );
        assert_eq!(firmware.attributes["NumaNodesPerSocket"], "4");
        assert_eq!(firmware.attributes.len(), 2);
        let one = BTreeMap::from([("ProcCStates".to_string(), "Disabled".to_string())]);
        assert_eq!(firmware.waiting, Some(one));
        let text = serde_json::to_string(firmware).unwrap();
        assert!(!text.contains("S3CR3T") && !text.contains("4C4C"), "{text}");
    }
}

#[test]
fn a_change_is_staged_once_with_the_kinds_and_the_state_that_were_read() {
    let path = "/redfish/v1/Systems/1/Bios/Settings";
    let attributes = json!({ "Turbo": "Enabled", "Nps": 4, "Sriov": true });
    let mut fake = host("/redfish/v1/Systems/1/Bios", Some(path), attributes, json!({ "Nps": 1 }));
    fake.etag = Some("W/\"5\"".to_string());
    let found = read(&mut fake, None).unwrap();
    let want = |list: &[(&str, &str)]| {
        let list: Vec<_> =
            list.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        found.changes(&list)
    };
    let changes =
        want(&[("Turbo", "Disabled"), ("Nps", "1"), ("Sriov", "false"), ("Turbo", "Enabled")])
            .unwrap();
    let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
    assert_eq!(names, ["Turbo", "Sriov"]);
    found.stage(&mut fake, &changes).unwrap();
    let body = json!({
        "Attributes": { "Turbo": "Disabled", "Sriov": false },
        "@Redfish.SettingsApplyTime": { "ApplyTime": "OnReset" },
    });
    assert_eq!(fake.sent, [(path.to_string(), Some("W/\"5\"".to_string()), body)]);
    // What waits is taken back by what is in force.
    assert_eq!(want(&[("Nps", "4")]).unwrap()[0].before, "4");
    let error = |list| want(list).unwrap_err().to_string();
    assert_eq!(
        error(&[("turbo", "x")]),
        "the firmware has no setting `turbo`; did you mean `Turbo`?"
    );
    assert_eq!(error(&[("Nps", "four")]), "`Nps` is a number, and `four` is none");
    assert_eq!(error(&[("Sriov", "on")]), "`Sriov` is true or false, and `on` is none");
    fake.etag = Some("W/\"6\"".to_string());
    assert!(matches!(found.stage(&mut fake, &changes), Err(FirmwareError::Changed)));
}

#[test]
fn a_link_out_of_the_service_is_not_followed() {
    for path in ["http://elsewhere/redfish/v1/", "/redfish/v1/../../etc", "/etc", "/redfish/v1/a b"]
    {
        let mut fake = host("/redfish/v1/b", None, json!({}), json!({}));
        let system = fake.documents.get_mut("/redfish/v1/Systems/1").unwrap();
        system["Bios"] = at(path);
        let error = read(&mut fake, None).unwrap_err().to_string();
        assert!(error.ends_with("it links to another place than its own service"), "{error}");
    }
}

#[test]
fn each_refusal_is_told_apart() {
    let path = "/redfish/v1/Systems/1/Bios";
    let fresh = || host(path, None, json!({ "A": "1" }), json!({}));
    let with = |place: &str, status: u16| {
        let mut fake = fresh();
        fake.status.insert(place.to_string(), status);
        read(&mut fake, None).unwrap_err().to_string()
    };
    assert!(with(ROOT, 404).ends_with("there is no Redfish service"));
    assert!(with("/redfish/v1/Systems", 401).contains("refuses the login"));
    assert!(with(path, 501).contains("tells no settings of the firmware (status 501"));
    assert!(with("/redfish/v1/Systems/1", 503).ends_with("with status 503"));
    let found = read(&mut fresh(), None).unwrap();
    assert_eq!(found.firmware.waiting, None);
    assert!(matches!(found.stage(&mut fresh(), &[]), Err(FirmwareError::ReadOnly)));
    let error = read(&mut fresh(), Some("2")).unwrap_err().to_string();
    assert_eq!(error, "the management controller has no system `2`, but 1");
    let mut two = fresh();
    let systems = two.documents.get_mut("/redfish/v1/Systems").unwrap();
    *systems = json!({ "Members": [at("/redfish/v1/Systems/1"), at("/redfish/v1/Systems/2/")] });
    assert_eq!(
        read(&mut two, None).unwrap_err().to_string(),
        "the management controller has the systems 1, 2; name one with --bmc-system"
    );
    assert!(read(&mut two, Some("1")).is_ok());
}

#[test]
fn settings_have_a_number_and_a_length() {
    let check = |attributes: Value, words: &str| {
        let mut fake = host("/redfish/v1/b", None, attributes, json!({}));
        let error = read(&mut fake, None).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let many = (0..=limits::FIRMWARE_ATTRIBUTES_MAX).map(|n| (format!("A{n}"), json!("x")));
    check(many.collect(), "it has 8193 settings, at most 8192 are read");
    check(json!({ "A": "x".repeat(4_097) }), "longer than 4096 bytes");
    check(json!("none"), "it has no attributes");
}

#[test]
fn a_message_of_the_controller_is_repeated_without_control_characters() {
    let body =
        json!({ "error": { "@Message.ExtendedInfo": [{ "Message": "no\u{7} such\nvalue" }] } });
    assert_eq!(message(body.to_string().as_bytes()), "no suchvalue");
    assert_eq!(message(b"<html>"), "");
}

#[test]
fn a_snapshot_has_only_settings_that_a_check_knows() {
    let attributes = [("ProcCStates", "Enabled"), ("AssetTag", "owner 7"), ("OneTimeBoot", "x")];
    let texts = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
        list.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    let firmware = Firmware {
        attributes: texts(&attributes),
        waiting: Some(texts(&attributes[1..])),
        ..Firmware::default()
    };
    let kept = known(&firmware);
    assert_eq!(kept.attributes, texts(&attributes[..1]));
    assert_eq!(kept.waiting, Some(BTreeMap::new()));
}
