//! A plan that tells within seconds whether a node still is what it was.

use nm_model::{Plan, Target};

use super::words::{AbsolutePath, EngineError, LIMITS_MAX};

/// A short plan of one node, and what judges it.
#[derive(Debug, Clone)]
pub struct NodePlan {
    text: String,
    baseline: Option<AbsolutePath>,
}

impl NodePlan {
    /// A plan judged by these limits, by accepted runs, or by both.
    ///
    /// # Errors
    /// If nothing judges it, or if a limit is none of these probes.
    pub fn new(
        limits: Vec<Target>,
        baseline: Option<AbsolutePath>,
    ) -> Result<NodePlan, EngineError> {
        if limits.is_empty() && baseline.is_none() {
            return Err(EngineError::NoGate);
        }
        if limits.len() > LIMITS_MAX {
            return Err(EngineError::Limits(limits.len()));
        }
        let refused = |fault: nm_model::plan::PlanError| EngineError::Plans(fault.to_string());
        let text = text(&limits);
        Plan::parse(&text).map_err(refused)?;
        Ok(NodePlan { text, baseline })
    }

    /// The accepted runs.
    pub(super) fn baseline(&self) -> Option<&AbsolutePath> {
        self.baseline.as_ref()
    }

    /// The plan as a file.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The plan with these limits. None of them holds a quote or a line end.
fn text(limits: &[Target]) -> String {
    let mut text = PLAN.to_string();
    for limit in limits {
        let limit = limit.to_string();
        let probe = if limit.starts_with("time-lost") { "jitter" } else { "pingpong" };
        text += &format!("\n[[targets]]\nrequire = \"{limit}\"\nprobe = \"{probe}\"\n");
    }
    text
}

/// Some seconds of what a slow node shows first: a spinning round trip, and what interrupts it.
const PLAN: &str = r#"name = "node"
rounds = 5

[[trials]]
environments = ["loopback"]
stacks = ["tcp-spin"]
probe = "pingpong"
sizes = [64]
max_ms = 200
warmup_ms = 50

[[trials]]
environments = ["loopback"]
probe = "jitter"
seconds = 0.5
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(limits: &[&str]) -> Result<NodePlan, EngineError> {
        NodePlan::new(limits.iter().map(|limit| limit.parse().unwrap()).collect(), None)
    }

    #[test]
    fn limits_become_targets_of_their_probes() {
        let plan = plan(&["p99 < 50us at size<=64", "time-lost < 1%"]).unwrap();
        let text = plan.text();
        let parsed = Plan::parse(text).unwrap();
        assert_eq!(parsed.targets.len(), 2, "{text}");
        assert!(text.contains("probe = \"jitter\"\n"), "{text}");
    }

    #[test]
    fn a_plan_that_judges_nothing_is_refused() {
        assert_eq!(plan(&[]).unwrap_err(), EngineError::NoGate);
        assert_eq!(plan(&["p99 < 1us"; 65]).unwrap_err(), EngineError::Limits(65));
        let fault = plan(&["throughput >= 3 Gb/s"]).unwrap_err().to_string();
        assert!(fault.starts_with("--limit: "), "{fault}");
    }
}
