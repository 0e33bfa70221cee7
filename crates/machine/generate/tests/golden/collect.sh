#!/bin/sh
# Waits for the jobs, and writes the result of each into a folder for `nearmetal report`.
#
#   sh collect.sh FOLDER
#
# FOLDER must be new; it gets JOB/result.json. Where a job has no result, JOB/messages.txt says why.
# Exit codes are those of nearmetal: 0 pass, 1 a target failed, 3 inconclusive, 4 no measurement.
set -eu
folder=${1:?usage: collect.sh FOLDER}
mkdir -- "$folder"
code=0
worse() {
  case $1 in
  0) ;;
  1) code=1 ;;
  *) [ "$code" -ne 0 ] || code=$1 ;;
  esac
}
ask() { kubectl --namespace=latency get "$@"; }

for job in $(ask jobs --selector=app.kubernetes.io/instance=rack-7,app.kubernetes.io/component=measure --output=name); do
  name=${job##*/}
  while
    conditions=$(ask "$job" '--output=jsonpath={.status.conditions[?(@.status=="True")].type}')
    case " $conditions " in *' Complete '* | *' Failed '*) false ;; esac
  do sleep 2; done
  mkdir -- "$folder/$name"
  # The last pod: those before it found no server.
  pod=$(ask pods --selector="job-name=$name" --sort-by=.metadata.creationTimestamp --output=name |
    tail -n 1)
  ended=4
  if [ -n "$pod" ]; then
    kubectl --namespace=latency logs "$pod" > "$folder/$name/messages.txt" || :
    ended=$(ask "$pod" \
      '--output=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}')
  else
    echo 'no pod has run: see kubectl describe job' > "$folder/$name/messages.txt"
  fi
  case ${ended:=4} in
  0 | 1 | 3)
    # A log has the messages too, before and after the result.
    sed -n '/^{$/,/^}$/p' "$folder/$name/messages.txt" > "$folder/$name/result.json"
    rm -- "$folder/$name/messages.txt"
    ;;
  esac
  echo "$name: ended with $ended"
  worse "$ended"
done
exit "$code"
