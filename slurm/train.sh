# shellcheck shell=bash
# The training job. train*.sbatch and sweep.sbatch set its sizes and source this file.

set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=job.sh
. "$PROJECT/slurm/job.sh"
RESTART=${RESTART:-0}
check_numbers SERVER_NODES SERVERS_PER_NODE RANKS_PER_NODE RESTART

STOPPED_BY_SIGNAL=85 # megatron_sspo/processes/stop.py: saved, to be requeued
STOPPED_BY_FILE=86   # saved, and a user wanted it to end

recipe=${1:-}
shift || true
servers="" trainer="" # the pids of their sruns
leaving=""            # the reason why the job leaves its nodes and is requeued

main() {
    trap on_limit USR1
    trap on_term TERM
    [[ $recipe ]] || fail "no recipe: sbatch slurm/train.sbatch RECIPE [--set field.field=value ...]"
    begin
    divide_nodes
    local newest
    newest=$(newest_checkpoint)
    get_servers "$@"
    if [[ ! $leaving ]]; then
        start_trainer "$@"
        watch
    fi
    finish "$newest"
}

# Slurm's warning; --signal sets its time before the time limit.
on_limit() {
    leave "the time limit is near"
}

# Slurm ends the job, or a user has sent SIGTERM to this script.
on_term() {
    check_if_ended_by_slurm
    if [[ $ended ]]; then
        say "Slurm ends the job; the checkpoints are in $RUN/checkpoints"
    else
        leave "SIGTERM came"
    fi
}

leave() {
    leaving=$1
    say "$1: the trainer finishes its update, saves a checkpoint, and stops"
    if [[ $trainer ]]; then kill -USR1 "$trainer"; fi # srun forwards it to every rank
}

# Sets server_nodes to the first SERVER_NODES nodes of the job, train_nodes to the others; with 0, both are all nodes.
# shellcheck disable=SC2153
divide_nodes() {
    ((RANKS_PER_NODE)) || fail "RANKS_PER_NODE=0 leaves no trainer on a node: write 1 or more"
    ((SERVER_NODES < ${#nodes[@]})) ||
        fail "SERVER_NODES=$SERVER_NODES leaves no trainer among ${#nodes[@]} nodes: sbatch --nodes=$((SERVER_NODES + 1)) or more"
    ((RANKS_PER_NODE <= cpus_of_node)) ||
        fail "RANKS_PER_NODE=$RANKS_PER_NODE is more than the job's processors on a node ($cpus_of_node): sbatch --cpus-per-task=$((8 * RANKS_PER_NODE)), or --exclusive"
    train_nodes=$(join "${nodes[@]:SERVER_NODES}")
    server_nodes=$train_nodes
    if ((SERVER_NODES)); then server_nodes=$(join "${nodes[@]:0:SERVER_NODES}"); fi
    num_ranks=$(((${#nodes[@]} - SERVER_NODES) * RANKS_PER_NODE))
}

# Sets engine to the trainer's arguments that name the servers; it is empty if the recipe's engine needs no servers.
get_servers() {
    engine=()
    if [[ ${SERVERS:-} ]]; then
        [[ -s $SERVERS/urls && -s $SERVERS/key ]] || fail "$SERVERS holds no servers: it has no urls and key of slurm/serve.sbatch"
        mapfile -t urls <"$SERVERS/urls"
        MEGATRON_SSPO_SERVER_KEY=$(<"$SERVERS/key")
        export MEGATRON_SSPO_SERVER_KEY
    elif ((SERVERS_PER_NODE)); then
        make_key
        start_servers "$server_nodes" "$recipe" "$@" --set "rollouts.options.num_servers=$SERVERS_PER_NODE"
        await_servers "$server_nodes" || end_with_log server "$servers" "the newest checkpoint: $(newest_checkpoint)"
    else
        return
    fi
    local quoted=("${urls[@]/#/\"}")
    engine=(--set rollouts.engine=sglang --set "rollouts.options.urls=[$(join "${quoted[@]/%/\"}")]"
        --set "rollouts.options.address=${address_of[${train_nodes%%,*}]}")
}

start_trainer() {
    local resume=()
    if [[ -e $RUN/config.json ]]; then resume=(--resume "$RUN"); fi
    export MASTER_ADDR=${address_of[${train_nodes%%,*}]} MASTER_PORT=$first_port
    say "$num_ranks trainers on $train_nodes${resume:+, from the checkpoint: $newest}"
    # shellcheck disable=SC2016 # expanded for each rank
    step trainer "$CONTAINER" "$RANKS_PER_NODE" "$train_nodes" bash -c "$use_gloo_interface"'
        export WORLD_SIZE=$1 RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
        shift
        exec "$@"' _ "$num_ranks" "$PYTHON" -m megatron_sspo train "$recipe" "$@" "${engine[@]}" \
        --set "output=$(dirname "$RUN")" --set "name=$(basename "$RUN")" "${resume[@]}" &
    trainer=$!
}

# Waits until the trainer has ended; ends the job if the servers fail.
watch() {
    while all_running "$trainer"; do
        if [[ $servers ]] && ! all_running "$servers" && [[ ! $ended ]]; then end_or_restart server "$servers"; fi
        pause
    done
}

finish() {
    local code=$STOPPED_BY_SIGNAL
    if [[ $trainer ]]; then
        wait "$trainer"
        code=$?
    fi
    ((code == 0)) || check_if_ended_by_slurm
    if [[ $ended ]]; then
        ((code == STOPPED_BY_SIGNAL)) || fail "$ended; the trainer $(how "$code"), and the newest checkpoint: $(newest_checkpoint)"
        fail "$ended; the trainer has saved $(newest_checkpoint)"
    fi
    case $code in
    0)
        end_steps
        say "done: $RUN/model"
        ;;
    "$STOPPED_BY_SIGNAL" | 138 | 143) # 138 and 143: killed by USR1 or TERM before the trainer handles these signals
        requeue "${leaving:-the nodes are needed by another job}" "$1"
        ;;
    "$STOPPED_BY_FILE")
        end_steps
        say "stopped by $RUN/stop, and not requeued: RUN=$RUN sbatch ... resumes from $(newest_checkpoint)"
        ;;
    *) end_or_restart trainer "$trainer" ;;
    esac
}

# end_or_restart ROLE PID: ends the job because a role has failed. With RESTART=1 it is requeued instead if this attempt has
# saved a checkpoint, so that an error that comes again at the same update ends it.
end_or_restart() {
    local reached
    reached=$(newest_checkpoint)
    if ((RESTART)) && [[ $reached != "$newest" ]]; then
        last_lines "$1"
        wait_for_lost_node
        requeue "the $1 has failed" "$newest"
    fi
    end_with_log "$1" "$2" "the newest checkpoint: $reached"
}

# requeue REASON NEWEST: requeues the job. It fails at the time limit if there is no checkpoint newer than NEWEST.
requeue() {
    local reached tries=0
    reached=$(newest_checkpoint)
    if [[ $leaving == *limit* && $reached == "$2" ]]; then
        fail "no update was finished within the time limit, so a requeued job would fail in the same way: raise --time, or lower the lead of --signal"
    fi
    end_steps
    say "$1: requeued, to resume from the checkpoint: $reached"
    trap '' USR1 TERM
    until scontrol requeue "$job_id"; do # the controller may be restarting
        ((++tries < 10)) || fail "Slurm does not requeue it: RUN=$RUN sbatch ... resumes from $reached"
        pause
    done
    exit 0
}

newest_checkpoint() {
    local found
    found=$(find "$RUN/checkpoints" -maxdepth 1 -name 'update-*' -printf '%f\n' 2>/dev/null | sort -V | tail -n 1)
    echo "${found:-none}"
}

main "$@"
