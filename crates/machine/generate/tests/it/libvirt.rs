//! The domain's XML: read back, checked against libvirt's own schema, and as reviewed.

use std::collections::BTreeMap;

use nm_generate::{PageSize, Request, libvirt::domain, place, read};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::host::{Host, request, server};
use crate::schema::{has_schemas, validate_all};

fn xml(host: &Host, request: &Request) -> String {
    domain(&place(&read(host.record().path()), request).unwrap(), request)
}

/// Each element's path with its attributes, in order.
fn elements(xml: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let (mut reader, mut path, mut found) = (Reader::from_str(xml), vec![], vec![]);
    let attributes = |start: &BytesStart<'_>| {
        start
            .attributes()
            .map(|attribute| attribute.expect("an attribute"))
            .map(|one| {
                let key = one.key.as_ref().to_string();
                (key, one.value.to_string())
            })
            .collect::<BTreeMap<_, _>>()
    };
    loop {
        let name = |start: &BytesStart<'_>| start.name().as_ref().to_string();
        match reader.read_event().expect("well-formed") {
            Event::Start(start) => {
                path.push(name(&start));
                found.push((path.join("/"), attributes(&start)));
            }
            Event::Empty(start) => {
                found.push((format!("{}/{}", path.join("/"), name(&start)), attributes(&start)));
            }
            Event::End(_) => drop(path.pop()),
            Event::Eof => break,
            _ => {}
        }
    }
    assert!(path.is_empty());
    found
}

fn variants() -> Vec<Request> {
    vec![
        request(),
        Request { realtime: true, page_size: PageSize::Mib2, memory_bytes: 4 << 21, ..request() },
        Request { disk: Some("/images/a & <b>'s.qcow2".into()), ..request() },
        Request { vcpus: 1, nic: "eno1".into(), name: "x-1_2.3".into(), ..request() },
        Request { nic: "ens1f0v0".into(), ..request() },
    ]
}

#[test]
fn every_vcpu_is_pinned_once_and_nothing_else_is_there() {
    let elements = elements(&xml(&server(), &request()));
    let all = |path: &str| -> Vec<&BTreeMap<String, String>> {
        elements.iter().filter(|(at, _)| at == path).map(|(_, attributes)| attributes).collect()
    };
    let pins: Vec<(&str, &str)> = all("domain/cputune/vcpupin")
        .iter()
        .map(|pin| (pin["vcpu"].as_str(), pin["cpuset"].as_str()))
        .collect();
    assert_eq!(pins, [("0", "9"), ("1", "10"), ("2", "11"), ("3", "12")]);
    assert_eq!(all("domain/cputune/emulatorpin")[0]["cpuset"], "8,24");
    assert_eq!(all("domain/cputune/iothreadpin")[0]["cpuset"], "8,24");
    assert_eq!(all("domain/numatune/memory")[0]["nodeset"], "1");
    assert_eq!(all("domain/memoryBacking/hugepages/page")[0]["size"], "1048576");
    assert_eq!(all("domain/memoryBacking/locked").len(), 1);
    assert_eq!(all("domain/cpu")[0]["mode"], "host-passthrough");
    assert_eq!(all("domain/cpu/feature")[0]["name"], "invtsc");
    assert_eq!(all("domain/features/kvm/hint-dedicated")[0]["state"], "on");
    assert_eq!(all("domain/devices/memballoon")[0]["model"], "none");
    let timer = |name: &str| {
        let timers = all("domain/clock/timer");
        timers.into_iter().find(|timer| timer["name"] == name).unwrap().clone()
    };
    assert_eq!(timer("hpet")["present"], "no");
    assert_eq!(timer("tsc")["mode"], "native");
    let address = all("domain/devices/hostdev/source/address")[0];
    assert_eq!((address["bus"].as_str(), address["function"].as_str()), ("0xaf", "0x0"));
    assert!(all("domain/devices/interface").is_empty(), "the device is the only network");
    assert!(all("domain/cputune/vcpusched").is_empty());
}

#[test]
fn real_time_leaves_the_first_vcpu_out() {
    let xml = xml(&server(), &Request { realtime: true, ..request() });
    assert!(xml.contains("<vcpusched vcpus='1-3' scheduler='fifo' priority='1'/>"), "{xml}");
}

#[test]
fn no_invariant_clock_is_promised_that_the_host_does_not_have() {
    let host = Host { flags: "svm", ..server() };
    assert!(!xml(&host, &request()).contains("invtsc"));
}

#[test]
fn domains_are_valid_by_the_schema_of_libvirt() {
    if !has_schemas() {
        return;
    }
    let mut all: Vec<String> = variants().iter().map(|one| xml(&server(), one)).collect();
    all.push(xml(&server(), &request()).replace("<locked/>", "<lokced/>"));
    let mut results = validate_all(&all, "domain");
    assert!(results.pop().unwrap().is_err(), "the schema finds a wrong element");
    for (xml, result) in all.iter().zip(results) {
        assert_eq!(result, Ok(()), "{xml}");
    }
}

#[test]
fn text_is_as_reviewed_and_the_same_each_time() {
    let request = Request { disk: Some("/var/lib/images/latency.raw".into()), ..request() };
    let text = xml(&server(), &request);
    assert_eq!(text, xml(&server(), &request));
    crate::golden("libvirt.xml", &text);
}
