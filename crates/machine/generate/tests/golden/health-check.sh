#!/bin/sh
export SLURM_CONF='/srv/slurm/slurm.conf'
# Health check of a node: drains it, with the reason, when a limit is certainly missed. In
# slurm.conf:
#
#   HealthCheckProgram=/etc/slurm/nearmetal-health-check.sh
#   HealthCheckInterval=3600
#   HealthCheckNodeState=IDLE,CYCLE
#
# One check runs at a time, for at most 40 s. Inconclusive figures drain nothing.
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
name = "node"
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

[[targets]]
require = "p99 < 50us at size<=64"
probe = "pingpong"

[[targets]]
require = "time-lost < 1%"
probe = "jitter"
END
export COLUMNS=1000
timeout --kill-after=5 40 '/opt/it'\''s here/nearmetal' \
  qualify --quiet --plan "$folder/node.toml" --baseline '/opt/it'\''s here/nearmetal' --out "$folder/result" \
  > "$folder/said" 2> "$folder/errors"
if [ $? -eq 1 ]; then
  timeout 10 scontrol update NodeName="$node" State=DRAIN \
    Reason="nearmetal: $(grep -m 1 -E '^(gate: )?FAIL: ' "$folder/said" | tr -d '"' | cut -c 1-400)"
else
  tail -n 1 "$folder/errors" >&2
fi
exit 0
