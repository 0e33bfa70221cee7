//! The machine of a result in one line: site, CPU, cores, kernel, hypervisor, network device.

use nm_model::RunResult;
use nm_model::facts::{Facts, LinkFacts};

use crate::units;

/// Most machines that the line names.
const MACHINES_MAX: usize = 2;

/// The machines that a result ran on, each once, with the label of their site; none if no fact is
/// known. Guests are left out where a machine is known.
pub fn sentence(result: &RunResult) -> Option<String> {
    let is_guest = |environment: &str| environment.starts_with("vm-");
    let has_host = result.facts.keys().any(|endpoint| !is_guest(&endpoint.environment));
    let mut machines: Vec<(String, Vec<String>)> = vec![];
    for (endpoint, facts) in &result.facts {
        if has_host && is_guest(&endpoint.environment) {
            continue;
        }
        let text = machine(facts);
        let links = facts.links.iter().filter_map(link);
        match machines.iter_mut().find(|(known, _)| *known == text) {
            Some((_, known)) => known.extend(links),
            None => machines.push((text, links.collect())),
        }
    }
    let mut parts: Vec<String> = machines.into_iter().map(with_links).collect();
    let n_more = parts.len().saturating_sub(MACHINES_MAX);
    parts.truncate(MACHINES_MAX);
    if n_more > 0 {
        parts.push(format!("and {n_more} more"));
    }
    parts.extend(result.label.iter().map(|label| format!("site {label}")));
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Facts that could not be read are not named, but the CPU, whose absence would mislead.
fn machine(facts: &Facts) -> String {
    let model = facts.cpu.model.clone().unwrap_or_else(|| "CPU of unknown model".to_string());
    let n_cpus = facts.cpu.online as usize;
    let cpus = (n_cpus > 0).then(|| units::plural(n_cpus, "CPU", "CPUs"));
    let kernel = &facts.host.kernel;
    let kernel = (!kernel.is_empty()).then(|| format!("kernel {kernel}"));
    let hypervisor = facts.virtualization.hypervisor.clone();
    let hypervisor = hypervisor.unwrap_or_else(|| "no hypervisor seen".to_string());
    let parts = [Some(model), cpus, kernel, Some(hypervisor)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn with_links((machine, mut links): (String, Vec<String>)) -> String {
    links.sort_unstable();
    links.dedup();
    links.truncate(MACHINES_MAX);
    match links.is_empty() {
        true => machine,
        false => format!("{machine}, {}", links.join(" and ")),
    }
}

/// A device on a bus; virtual links have none.
fn link(link: &LinkFacts) -> Option<String> {
    link.bus.as_ref()?;
    let driver = link.driver.as_ref().map(|driver| format!(" ({driver})"));
    Some(format!("NIC {}{}", link.name, driver.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use nm_model::result::Source;
    use nm_model::{EndpointId, Side};

    use super::*;

    #[test]
    fn a_machine_is_named_once_with_its_devices_and_site() {
        let mut run = RunResult::new("run", Source::Measured { version: "0".into() });
        assert_eq!(sentence(&run), None);
        let mut facts = Facts::default();
        facts.cpu.online = 4;
        facts.host.kernel = "6.1".into();
        facts.links = vec![LinkFacts { name: "veth0".into(), ..LinkFacts::default() }];
        run.facts.insert(EndpointId::new("netns", Side::Client), facts.clone());
        facts.links.push(LinkFacts {
            name: "eth0".into(),
            bus: Some("0000:01:00.0".into()),
            driver: Some("mlx5_core".into()),
            ..LinkFacts::default()
        });
        run.facts.insert(EndpointId::new("loopback", Side::Client), facts);
        run.label = Some("rack 7".into());
        let machine = "CPU of unknown model, 4 CPUs, kernel 6.1, no hypervisor seen";
        let expected = format!("{machine}, NIC eth0 (mlx5_core); site rack 7");
        assert_eq!(sentence(&run), Some(expected));
    }
}
