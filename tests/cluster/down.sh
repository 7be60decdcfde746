#!/usr/bin/env bash
# Removes everything that up.sh has made: jobs, daemons, namespaces, bridge and files. Packages stay. It is safe at any
# time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=layout.sh
. "$here/layout.sh"

main() {
    local name i
    if alive slurmctld; then
        timeout 10 scancel --user=root || true
        await 15 no_jobs || echo "down.sh: some jobs did not end when they were cancelled; they are killed" >&2
    fi
    for name in slurmctld slurmdbd mariadbd munged; do stop "$name"; done
    for ((i = 1; i <= num_nodes; i++)); do stop "slurmd.n$i"; done
    for ((i = 1; i <= num_nodes; i++)); do
        ip netns list 2>/dev/null | grep -qw "$bridge-n$i" || continue
        ip netns pids "$bridge-n$i" | xargs --no-run-if-empty kill -KILL 2>/dev/null || true
        ip netns del "$bridge-n$i"
    done
    if ip link show "$bridge" >/dev/null 2>&1; then ip link del "$bridge"; fi
    if [[ -e $root/etc/slurm.conf ]]; then rm -rf -- "$root"; fi
}

no_jobs() {
    [[ -z $(timeout 5 squeue --noheader) ]]
}

# Kills a daemon by its pid file. Its state is deleted too, so it need not write it.
stop() {
    alive "$1" || return 0
    local pid
    pid=$(cat "$root/run/$1.pid")
    kill -KILL "$pid"
    await 10 eval "! kill -0 $pid" || fail "${1%%.*} (process $pid) does not end"
}

main
