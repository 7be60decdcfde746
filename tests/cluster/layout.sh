# shellcheck shell=bash disable=SC2034
# Settings that up.sh and down.sh share; both source this file.

root=${MEGATRON_SSPO_CLUSTER:-/tmp/megatron_sspo_cluster} # every file of the cluster
num_nodes=4
subnet=10.253.77 # node i is .i, the controller .254; there is no route out of it
bridge=sspo-cluster
export SLURM_CONF=$root/etc/slurm.conf

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# alive NAME: succeeds if the daemon of run/NAME.pid runs. A pid that now belongs to another process does not count.
alive() {
    local pid
    pid=$(cat "$root/run/$1.pid" 2>/dev/null) && [[ $(cat "/proc/$pid/comm" 2>/dev/null) == "${1%%.*}" ]]
}

# await SECONDS COMMAND...: waits until the command succeeds; fails after that time.
await() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || return 1
        sleep 0.1
    done
}
