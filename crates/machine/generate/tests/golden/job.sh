#!/bin/sh
#SBATCH --job-name=rack-7
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --partition=Low_Latency
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

code=0
worse() {
  case $1 in
  0) ;;
  1) code=1 ;;
  *) [ "$code" -ne 0 ] || code=$1 ;;
  esac
}

# Each node by itself, all at once.
cat > "$folder/node.sh" <<'END'
exec '/opt/it'\''s here/nearmetal' \
  qualify --quiet --plan "$1/node.toml" --baseline '/opt/it'\''s here/nearmetal' --out "$1/hosts/$SLURMD_NODENAME"
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
  PATH=$steps:$PATH '/opt/it'\''s here/nearmetal' \
    fleet run --hosts "$folder/hosts.txt" --plan 'two-hosts:latency' --pairs 'sample:4' --out "$folder/fleet" \
    || worse $?
fi
exit "$code"
