# shellcheck shell=bash disable=SC2034
# What up.sh and down.sh agree on. Sourced by both.

root=${MEGATRON_SSPO_CLUSTER:-/tmp/megatron_sspo_cluster} # every file of the cluster
num_nodes=4
subnet=10.253.77 # node i is .i, the controller .254; there is no route out of it
bridge=sspo-cluster
export SLURM_CONF=$root/etc/slurm.conf

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# alive NAME: whether the daemon of run/NAME.pid runs. A pid that has gone to somebody else is not taken for it.
alive() {
    local pid
    pid=$(cat "$root/run/$1.pid" 2>/dev/null) && [[ $(cat "/proc/$pid/comm" 2>/dev/null) == "${1%%.*}" ]]
}

# await SECONDS COMMAND...: whether it succeeds within that time.
await() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || return 1
        sleep 0.1
    done
}
