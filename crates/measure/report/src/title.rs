//! The title of a result for people: `vm, plan quick, 22 Nov 2026`.

use jiff::Timestamp;
use nm_model::RunResult;
use nm_model::result::Source;

/// Host, plan and date of a measured result, as far as they are known; else its name.
pub fn title(result: &RunResult) -> String {
    if !matches!(result.source, Source::Measured { .. }) {
        return result.name.clone();
    }
    let hosts = hosts(result);
    let parts =
        [(!hosts.is_empty()).then(|| hosts.join(" and ")), Some(work(result)), date(result)];
    let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { result.name.clone() } else { parts.join(", ") }
}

/// Names of the hosts of all endpoints, each once.
pub fn hosts(result: &RunResult) -> Vec<&str> {
    let mut hosts: Vec<&str> = result.facts.values().map(|f| f.host.name.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts.retain(|host| !host.is_empty());
    hosts
}

/// `plan quick`, `part netns of plan quick`, or the probes of a run without a plan.
fn work(result: &RunResult) -> String {
    if let Some(plan) = &result.plan {
        return match &result.part {
            Some(part) => format!("part {} of plan {}", part.only, plan.name),
            None => format!("plan {}", plan.name),
        };
    }
    let mut probes: Vec<&str> = result.series.iter().map(|s| s.key.probe.name()).collect();
    probes.dedup();
    probes.join(" and ")
}

/// The day of the start in UTC: `22 Nov 2026`.
fn date(result: &RunResult) -> Option<String> {
    let started: Timestamp = result.started.as_ref()?.parse().ok()?;
    Some(started.strftime("%-d %b %Y").to_string())
}

#[cfg(test)]
mod tests {
    use nm_model::facts::Facts;
    use nm_model::row::EndpointId;
    use nm_model::{PlanPart, RowFilter, Side};

    use super::*;

    fn measured() -> RunResult {
        RunResult::new("20261122T062301Z-vm", Source::Measured { version: "0".into() })
    }

    #[test]
    fn a_title_names_host_plan_and_date() {
        let mut run = measured();
        assert_eq!(title(&run), "20261122T062301Z-vm");
        run.started = Some("2026-11-22T06:23:01Z".into());
        let text = "name='quick'\n[[trials]]\nenvironments=['loopback']\nstacks=['tcp-spin']\n\
                    probe='pingpong'\n";
        run.plan = Some(nm_model::Plan::parse(text).unwrap());
        assert_eq!(title(&run), "plan quick, 22 Nov 2026");
        let only = RowFilter::parse(&["netns", "tcp"]).unwrap();
        run.part = Some(PlanPart { only, is_judged_alone: false });
        assert_eq!(title(&run), "part netns,tcp of plan quick, 22 Nov 2026");
        run.part = None;
        for (side, name) in [(Side::Client, "vm"), (Side::Server, "peer")] {
            let mut facts = Facts::default();
            facts.host.name = name.into();
            run.facts.insert(EndpointId::new("ssh", side), facts);
        }
        assert_eq!(title(&run), "peer and vm, plan quick, 22 Nov 2026");
    }

    #[test]
    fn a_start_that_is_no_time_is_left_out() {
        let mut run = measured();
        run.started = Some("<b>yesterday".into());
        assert_eq!(title(&run), "20261122T062301Z-vm");
    }

    #[test]
    fn a_published_run_keeps_its_name() {
        let run = crate::reference::load("deftech-hft-vm-pf").unwrap();
        assert_eq!(title(&run), "deftech-hft-vm-pf");
    }
}
