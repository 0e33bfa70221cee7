//! Slurm: a batch script that measures the hosts of its job, and a health check of a node.

use std::fmt::Write as _;

use super::words::{WORSE, for_shell};
use super::{AbsolutePath, EngineFile, Name, NodePlan, PairsName, Partition, PlanName};

/// Slurm ends a health check after 60 s; this one ends itself before that.
const HEALTH_CHECK_LIMIT_S: u32 = 40;

/// What is asked of Slurm.
#[derive(Debug, Clone)]
pub struct SlurmRequest {
    /// Name of the job.
    pub name: Name,
    /// Nodes of the job.
    pub nodes: usize,
    /// Partition of the job; Slurm's default if absent.
    pub partition: Option<Partition>,
    /// Where nearmetal is on all nodes.
    pub program: AbsolutePath,
    /// The plan of each pair.
    pub plan: PlanName,
    /// Which pairs are measured.
    pub pairs: PairsName,
    /// What judges each node.
    pub node: NodePlan,
    /// Configuration of Slurm, where it is not the default one.
    pub configuration: Option<AbsolutePath>,
}

/// The batch script and the health check.
pub fn files(request: &SlurmRequest) -> Vec<EngineFile> {
    let file = |name: &str, text| EngineFile { name: name.to_string(), text, is_program: true };
    vec![file("job.sh", job(request)), file("health-check.sh", health_check(request))]
}

fn job(request: &SlurmRequest) -> String {
    let mut head = format!(
        "#!/bin/sh\n#SBATCH --job-name={}\n#SBATCH --nodes={}\n#SBATCH --ntasks-per-node=1\n\
         #SBATCH --exclusive\n",
        request.name, request.nodes
    );
    if let Some(partition) = &request.partition {
        let _ = writeln!(head, "#SBATCH --partition={partition}");
    }
    fill(JOB, request, &head)
}

fn health_check(request: &SlurmRequest) -> String {
    let mut head = "#!/bin/sh\n".to_string();
    if let Some(path) = &request.configuration {
        let _ = writeln!(head, "export SLURM_CONF={}", for_shell(path));
    }
    fill(HEALTH_CHECK, request, &head)
}

/// The template with its words. Words come last and at once: none is searched for other words.
fn fill(template: &str, request: &SlurmRequest, head: &str) -> String {
    let baseline = match request.node.baseline() {
        Some(path) => format!(" --baseline {}", for_shell(path)),
        None => String::new(),
    };
    let words = [
        ("@HEAD@\n", head.to_string()),
        ("@WORSE@\n", WORSE.to_string()),
        ("@PROGRAM@", for_shell(&request.program)),
        ("@PLAN@", for_shell(&request.plan)),
        ("@PAIRS@", for_shell(&request.pairs)),
        ("@BASELINE@", baseline),
        ("@NODE_PLAN@\n", request.node.text().to_string()),
        ("@LIMIT_S@", HEALTH_CHECK_LIMIT_S.to_string()),
    ];
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('@') {
        text += &rest[..at];
        rest = &rest[at..];
        let found = words.iter().find(|(word, _)| rest.starts_with(word));
        let (skipped, value) = found.map_or(("@", "@"), |(word, value)| (word, value));
        text += value;
        rest = &rest[skipped.len()..];
    }
    text + rest
}

/// `fleet run` starts its agents by the program `ssh`. In a job, a program of that name starts a
/// step on the host instead, so that nodes need no ssh, and Slurm accounts for all that runs.
const JOB: &str = r#"@HEAD@
# Measures the nodes of this job, each for itself and then pair by pair.
#
#   sbatch job.sh [FOLDER]
#
# FOLDER (nearmetal-JOB without it) must be new and on a file system that all nodes have. It gets
# hosts/NODE, a result for each node, and fleet, the result of all pairs: fleet/fleet.html.
# Exit codes are those of nearmetal: 0 pass, 1 a target failed, 3 inconclusive, 4 no measurement.
set -eu
folder=${1:-nearmetal-$SLURM_JOB_ID}
mkdir -- "$folder"
mkdir -- "$folder/hosts"
cat > "$folder/node.toml" <<'END'
@NODE_PLAN@
END

@WORSE@

# Each node by itself, all at once.
cat > "$folder/node.sh" <<'END'
exec @PROGRAM@ \
  qualify --quiet --plan "$1/node.toml"@BASELINE@ --out "$1/hosts/$SLURMD_NODENAME"
END
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --overlap --kill-on-bad-exit=0 sh "$folder/node.sh" "$folder" || worse $?

# Pairs: nearmetal reaches hosts by the program ssh, which here is a step of this job.
steps=$(mktemp -d)
trap 'rm -rf -- "$steps"' EXIT
trap 'exit 143' TERM
cat > "$steps/ssh" <<'END'
#!/bin/sh
while [ "$1" != -- ]; do shift; done
exec srun --quiet --unbuffered --nodes=1 --ntasks=1 --nodelist="$2" --overlap --cpu-bind=none \
  sh -c "$3"
END
chmod 700 "$steps/ssh"
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  name=$(scontrol --oneliner show node "$node" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
  address=$(getent hosts "$name" | sed -n '1s/ .*//p')
  printf '%s=%s\n' "$node" "$address"
done > "$folder/hosts.txt"
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  PATH=$steps:$PATH @PROGRAM@ \
    fleet run --hosts "$folder/hosts.txt" --plan @PLAN@ --pairs @PAIRS@ --out "$folder/fleet" \
    || worse $?
fi
exit "$code"
"#;

/// Ends with 0 whatever it finds: Slurm looks at no code, and drains by the script itself.
const HEALTH_CHECK: &str = r#"@HEAD@
# Health check of a node: drains it, with the reason, when a limit is certainly missed. In
# slurm.conf:
#
#   HealthCheckProgram=/etc/slurm/nearmetal-health-check.sh
#   HealthCheckInterval=3600
#   HealthCheckNodeState=IDLE,CYCLE
#
# One check runs at a time, for at most @LIMIT_S@ s. Inconclusive figures drain nothing.
umask 077
node=${SLURMD_NODENAME:-$(uname -n | cut -d. -f1)}
folder=/run/nearmetal-health-check-$node
exec 9> "$folder.lock"
flock --nonblock 9 || exit 0
# A check that was killed has left it.
rm -rf -- "$folder"
mkdir -- "$folder" || exit 0
trap 'rm -rf -- "$folder"' EXIT
cat > "$folder/node.toml" <<'END'
@NODE_PLAN@
END
export COLUMNS=1000
timeout --kill-after=5 @LIMIT_S@ @PROGRAM@ \
  qualify --quiet --plan "$folder/node.toml"@BASELINE@ --out "$folder/result" \
  > "$folder/said" 2> "$folder/errors"
if [ $? -eq 1 ]; then
  timeout 10 scontrol update NodeName="$node" State=DRAIN \
    Reason="nearmetal: $(grep -m 1 -E '^(gate: )?FAIL: ' "$folder/said" | tr -d '"' | cut -c 1-400)"
else
  tail -n 1 "$folder/errors" >&2
fi
exit 0
"#;
