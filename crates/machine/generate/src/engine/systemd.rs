//! systemd: a service that qualifies the machine against its accepted runs, and its timer.

use super::words::for_unit;
use super::{AbsolutePath, EngineFile, Name, PlanName};

/// What is asked of systemd.
#[derive(Debug, Clone)]
pub struct SystemdRequest {
    /// Name of both units, and of the folder of results in `/var/lib`.
    pub name: Name,
    /// When it runs.
    pub every: Every,
    /// Where nearmetal is.
    pub program: AbsolutePath,
    /// The plan.
    pub plan: PlanName,
    /// Accepted runs of the machine, if a gate judges too.
    pub baseline: Option<AbsolutePath>,
}

/// How often a timer runs its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    /// Each hour.
    Hour,
    /// Each day.
    Day,
    /// Each week.
    Week,
}

impl Every {
    fn calendar(self) -> &'static str {
        match self {
            Every::Hour => "hourly",
            Every::Day => "daily",
            Every::Week => "weekly",
        }
    }
}

/// The service, the timer, and how long results are kept.
pub fn files(request: &SystemdRequest) -> Vec<EngineFile> {
    let name = &request.name;
    let file =
        |end: &str, text| EngineFile { name: format!("{name}.{end}"), text, is_program: false };
    let timer = format!(
        "[Unit]\nDescription=Qualify this machine again and again\n\n[Timer]\nOnCalendar={}\n\
         RandomizedDelaySec=10min\nPersistent=true\n\n[Install]\nWantedBy=timers.target\n",
        request.every.calendar()
    );
    let kept = format!(
        "# For /etc/tmpfiles.d: results are removed after this time.\n\
         d /var/lib/{name} 0755 root root 90d\n"
    );
    vec![file("service", service(request)), file("timer", timer), file("conf", kept)]
}

/// The service. `qualify` writes into a folder of its own for each run: systemd has a new
/// `INVOCATION_ID` for each, by which its journal finds the run's messages too.
fn service(request: &SystemdRequest) -> String {
    let SystemdRequest { name, program, plan, .. } = request;
    let mut start = format!("{} qualify --quiet --plan {}", for_unit(program), for_unit(plan));
    if let Some(baseline) = &request.baseline {
        start += &format!(" --baseline {}", for_unit(baseline));
    }
    format!(
        "[Unit]\nDescription=Qualify this machine\n\n[Service]\n\
         # A oneshot service never runs twice at a time.\nType=oneshot\n\
         ExecStart={start} --out %S/{name}/${{INVOCATION_ID}}\n\
         StateDirectory={name}\n{LIMITS}"
    )
}

/// What the service may not do. It measures: it keeps its rights to make network namespaces, to
/// lock memory, to run in real time, and to open devices. It shares /tmp and /run with other runs,
/// which warn each other.
const LIMITS: &str = "\
TimeoutStartSec=2h
LimitMEMLOCK=infinity
NoNewPrivileges=yes
ProtectSystem=full
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
";
