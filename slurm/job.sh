# shellcheck shell=bash
# Functions that the scripts of this folder share; they source this file in their job. slurm/README.md explains the
# variables that a user sets.

[[ ${SLURM_JOB_ID:-} ]] || {
    echo "SLURM_JOB_ID is not set: submit this script with sbatch" >&2
    exit 1
}
# Relative paths are those of the job's folder: where sbatch was called, or its --chdir. They become absolute here,
# because steps run in PROJECT and containers mount only absolute paths.
PROJECT=$(realpath -ms -- "$PROJECT")
# pyxis takes for a file only what begins with / or a dot, and everything else for an image of a registry.
image() {
    if [[ -e $1 ]]; then realpath -s -- "$1"; else echo "$1"; fi
}
CONTAINER=$(image "${CONTAINER:-}")
SERVER_CONTAINER=$(image "${SERVER_CONTAINER:-$CONTAINER}")
PYTHON=${PYTHON:-$([[ $CONTAINER ]] && echo python3 || echo "$PROJECT/.venv/bin/python")}
SERVER_PYTHON=${SERVER_PYTHON:-$([[ $SERVER_CONTAINER ]] && echo python3 || echo "$PROJECT/.venv-sglang/bin/python")}
MOUNTS=${MOUNTS:-}
INTERFACE=${INTERFACE:-}
RUN=$(realpath -ms -- "${RUN:-$PROJECT/${folder:-runs}/$SLURM_JOB_NAME-$SLURM_JOB_ID}")

export PYTHONPATH=$PROJECT${PYTHONPATH:+:$PYTHONPATH}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false
if [[ $INTERFACE ]]; then export GLOO_SOCKET_IFNAME=$INTERFACE NCCL_SOCKET_IFNAME=$INTERFACE; fi
# srun reads these as its own options. They are sbatch's, and would contradict `step`: tasks dealt out over the nodes in
# turn, GPUs bound to single tasks or asked for in two ways, an environment without what is set here (--export).
export SLURM_EXPORT_ENV=ALL
unset SLURM_{DISTRIBUTION,EXACT,EXCLUSIVE,HINT,THREADS_PER_CORE,CORE_SPEC} SLURM_{CPU,GPU,MEM,TRES}_BIND \
    SLURM_{CPUS,MEM,NTASKS}_PER_GPU SLURM_{CPUS,TRES}_PER_TASK SLURM_MEM_PER_{CPU,NODE} SLURM_NTASKS_PER_{CORE,SOCKET} \
    SLURM_GPUS SLURM_GPUS_PER_{NODE,SOCKET,TASK} SLURM_HET_SIZE
# 16(x2),8: the processors of the job's nodes. A step asks for as many on each as the smallest has.
cpus_of_node=$(tr ',' '\n' <<<"$SLURM_JOB_CPUS_PER_NODE" | sort -n | grep -om 1 '^[0-9]*')

# SLURM_JOB_ID of the first element of an array is also the number of the whole array, so that Slurm would act on the
# whole array. ARRAY_ELEMENT names one element. If sbatch was called in an array's job, these variables are that job's.
shown=$(scontrol show job --oneliner "$SLURM_JOB_ID" 2>/dev/null)
job_id=$SLURM_JOB_ID
if [[ $shown == *"ArrayJobId=${SLURM_ARRAY_JOB_ID:-} ArrayTaskId=${SLURM_ARRAY_TASK_ID:-} "* ]]; then
    job_id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
fi
attempt=$RUN/slurm/$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
# twelve ports for each job, below the kernel's ephemeral ports, and others for the next attempt
first_port=$((20000 + (SLURM_JOB_ID + 97 * ${SLURM_RESTART_COUNT:-0}) % 1000 * 12))
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
declare -A address_of=()
GLOO_INTERFACES=""
# The beginning of a program that runs on each node.
# shellcheck disable=SC2016,SC2034 # expanded on each node, used by train.sh
use_gloo_interface='
    table=" ${GLOO_INTERFACES:-}"
    rest=${table##* "$SLURMD_NODENAME" }
    [[ $rest == "$table" ]] || export GLOO_SOCKET_IFNAME=${rest%% *}'
ended="" # the reason, if Slurm itself ends the job

say() {
    echo "[$(date +%T)] $*"
}

# fail MESSAGE...: ends the steps that still run, writes the last line of the job's log, and exits with 1.
fail() {
    end_steps
    say "the job ends: $*"
    exit 1
}

# check_numbers NAME...: ends the job if one of these variables is no whole number of at most six digits.
check_numbers() {
    local name
    for name in "$@"; do
        [[ ${!name} =~ ^(0|[1-9][0-9]{0,5})$ ]] || fail "$name is '${!name}': write a whole number, such as $name=1"
    done
}

join() {
    local IFS=,
    echo "$*"
}

# begin: makes the folders, checks that every node sees them, and finds the address of every node. Gloo would listen at the
# address of the host's own name; where that is 127.0.1.1, as on Debian, GLOO_INTERFACES gets the node and its interface.
begin() {
    [[ $shown != *HetJobId=* ]] ||
        fail "a heterogeneous job would run on its first part alone: sbatch --nodes=... without ':' and #SBATCH hetjob; roles share the nodes by SERVER_NODES"
    local name
    for name in CONTAINER SERVER_CONTAINER; do
        [[ ${!name} != *.@(sqsh|sif) || -e ${!name} ]] || fail "$name=${!name} does not exist in $PWD: write the whole path of the image"
    done
    mkdir -p "$attempt" || fail "cannot make $attempt: choose a folder that all nodes share, with RUN=..."
    say "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, attempt ${SLURM_RESTART_COUNT:-0}, logs in $attempt"
    local report node kind value
    # shellcheck disable=SC2016 # expanded on each node
    report=$(on_each_node 120 bash -c '
        interface=$1
        shift
        for path in "$@"; do [[ -e $path ]] || echo "$SLURMD_NODENAME missing $path"; done
        if [[ $interface ]]; then
            address=$(ip -4 -oneline address show "$interface" | awk "{ sub(\"/.*\", \"\", \$4); print \$4; exit }")
        else
            address=$(getent ahostsv4 "$SLURMD_NODENAME" | awk "\$1 !~ /^127\./ { print \$1; exit }")
            address=${address:-$(hostname -I | tr " " "\n" | grep -m 1 "^[0-9.]*$")}
            own=$(getent ahosts "$(hostname)" | awk "{ print \$1; exit }")
            if [[ ! ${GLOO_SOCKET_IFNAME:-} && ${own:-127.0.0.1} == @(127.*|::1) ]]; then
                name=$(ip -4 -oneline address | awk -v own="$address" "{ sub(\"/.*\", \"\", \$4) } \$4 == own { print \$2; exit }")
                [[ ! $name ]] || echo "$SLURMD_NODENAME interface $name"
            fi
        fi
        echo "$SLURMD_NODENAME address $address"' _ "$INTERFACE" "$attempt" "$PROJECT") ||
        fail "srun has not run on all of ${nodes[*]} within two minutes: its messages are above"
    while read -r node kind value; do
        if [[ $kind == missing ]]; then fail "$node does not see $value: use a folder that all nodes share"; fi
        if [[ $kind == interface ]]; then
            GLOO_INTERFACES+="$node $value "
        else
            address_of[$node]=$value
        fi
    done <<<"$report"
    export GLOO_INTERFACES
    for node in "${nodes[@]}"; do
        [[ ${address_of[$node]:-} ]] || fail "$node has no IPv4 address${INTERFACE:+ on $INTERFACE}: set INTERFACE to one of ip -br address"
    done
}

# on_each_node SECONDS COMMAND...: runs the command once on each node, with a timeout.
on_each_node() {
    local seconds=$1
    shift
    timeout "$seconds" srun --overlap --nodes="${#nodes[@]}" --ntasks="${#nodes[@]}" --ntasks-per-node=1 --mem=0 \
        --gres=none --mpi=none --kill-on-bad-exit=0 "$@"
}

# step ROLE CONTAINER TASKS_PER_NODE NODES COMMAND...: starts one srun, with a log for each node. NODES are separated by
# commas.
step() {
    local role=$1 container=$2 per_node=$3 chosen=$4 options=() inside=() name
    shift 4
    local commas=${chosen//[!,]/}
    local count=$((${#commas} + 1)) cpus=$((cpus_of_node / per_node))
    local mounts=$PROJECT:$PROJECT,${SWEEP:-$RUN}:${SWEEP:-$RUN}${MOUNTS:+,$MOUNTS}
    [[ ! ${SLURM_GPUS_ON_NODE:-} ]] || options+=(--gpus-per-node="$SLURM_GPUS_ON_NODE")
    if [[ $container == *.sif ]]; then
        inside=(apptainer exec --nv --no-home --bind "$mounts" --pwd "$PROJECT" "$container")
    elif [[ $container ]]; then
        options+=(--container-image="$container" --container-mounts="$mounts" --container-workdir="$PROJECT"
            --no-container-mount-home)
    fi
    if [[ $container ]]; then # the image's own variables win over the job's, except for those that are set within it
        # shellcheck disable=SC2016 # expanded in the container
        inside+=(bash -c 'PYTHONPATH=$1${PYTHONPATH:+:$PYTHONPATH} exec env "${@:2}"' _ "$PROJECT")
        for name in OMP_NUM_THREADS MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME; do
            [[ ! ${!name:-} ]] || inside+=("$name=${!name}")
        done
    fi
    # --wait instead of --kill-on-bad-exit: a trainer's exit code that requests a requeue is not a failure
    exec srun --overlap --nodes="$count" --nodelist="$chosen" --ntasks=$((count * per_node)) \
        --ntasks-per-node="$per_node" --cpus-per-task="$cpus" --distribution=block --cpu-bind=none \
        --mem=0 --mpi=none --wait=60 --kill-on-bad-exit=0 --chdir="$PROJECT" --output="${attempt//%/%%}/$role-%N.log" \
        --open-mode=append "${options[@]}" "${inside[@]}" "$@"
}

# end_steps: kills the steps of this job that still run. If Slurm ends the job, Slurm kills the steps, and this function
# kills only their sruns.
end_steps() {
    local found
    if [[ $ended ]]; then
        mapfile -t found < <(jobs -rp)
        disown -a # otherwise bash would report their end
        ((${#found[@]} == 0)) || kill -KILL "${found[@]}" 2>/dev/null
        return 0
    fi
    mapfile -t found < <(squeue --noheader --steps --jobs="$job_id" --format=%i 2>/dev/null | grep -E '\.[0-9]+$')
    ((${#found[@]})) || return 0
    scancel --signal=KILL "${found[@]}" 2>/dev/null
    local deadline=$((SECONDS + 15))
    while [[ $(jobs -rp) ]] && ((SECONDS < deadline)); do sleep 0.2; done # the sruns print their messages first
}

# last_lines ROLE: prints the last lines of each log of that role, so that the job's own log has the reason.
last_lines() {
    local log
    for log in "$attempt/$1"-*.log; do
        [[ -s $log ]] || continue
        echo "--- the last lines of $log"
        tail -n 8 "$log"
    done
    echo ---
}

# end_with_log ROLE PID [MESSAGE]: ends the job because the srun of that pid has ended.
end_with_log() {
    wait "$2"
    local code=$?
    last_lines "$1"
    [[ ! $CONTAINER$SERVER_CONTAINER ]] ||
        say "a container sees $PROJECT, $RUN and ${MOUNTS:-no MOUNTS}: any other folder needs MOUNTS=/folder:/folder"
    wait_for_lost_node
    fail "the $1 $(how "$code")${3:+; $3}"
}

# end_when_done ROLE PID: waits for the srun of that pid, and ends the job with its result.
end_when_done() {
    trap check_if_ended_by_slurm TERM
    while all_running "$2" && [[ ! $ended ]]; do pause; done
    if [[ $ended ]]; then fail "$ended"; fi
    wait "$2" || end_with_log "$1" "$2"
    last_lines "$1"
    say "done: $attempt"
    exit 0
}

# how CODE: prints an exit code in words.
how() {
    if (($1 > 128)); then
        echo "was killed by SIG$(kill -l "$(($1 - 128))")"
    else
        echo "ended with exit code $1"
    fi
}

# check_if_ended_by_slurm: sets `ended` if Slurm ends the job. Slurm ends a job with SIGTERM, but others may send it too. If
# the controller does not answer, for example because it restarts, it has not ended the job.
check_if_ended_by_slurm() {
    local state="" tries
    for ((tries = 0; tries < 10; tries++)); do
        state=$(scontrol show job --oneliner "$job_id" | grep -o 'JobState=[A-Z_]*' | cut -d = -f 2 | head -n 1)
        if [[ $state ]]; then break; fi
        pause
    done
    # while Slurm ends the job, scontrol prints only COMPLETING; slurmstepd has already written the reason to the log
    if [[ $state && $state != @(RUNNING|SIGNALING|SUSPENDED|STOPPED) ]]; then ended="ended by Slurm; slurmstepd printed the reason above"; fi
}

# wait_for_lost_node: if one of the job's nodes does not answer, waits until Slurm detects it too. Slurm then ends the job
# and queues it again for other nodes. The job's processes detect a lost node much earlier than Slurm.
wait_for_lost_node() {
    local seconds deadline
    if on_each_node 60 true 2>/dev/null; then return; fi
    seconds=$(scontrol show config 2>/dev/null | awk '$1 == "SlurmdTimeout" { print $3 }')
    say "a node does not answer: waiting up to ${seconds:=300} s for Slurm to detect it and requeue the job"
    trap check_if_ended_by_slurm TERM
    deadline=$((SECONDS + seconds + 120))
    while [[ ! $ended ]] && ((SECONDS < deadline)); do pause; done
    if [[ $ended ]]; then fail "$ended"; fi
}

# all_running PID...: succeeds if all of these processes are running.
all_running() {
    kill -0 "$@" 2>/dev/null
}

# pause: waits a second, or until a signal has been handled.
pause() {
    sleep 1 &
    wait $! || true
}

# make_key: sets MEGATRON_SSPO_SERVER_KEY to a random key. Steps get it by their environment, which `ps` does not show.
make_key() {
    MEGATRON_SSPO_SERVER_KEY=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
    export MEGATRON_SSPO_SERVER_KEY
}

# start_servers NODES ARGUMENTS...: starts `megatron-sspo serve ARGUMENTS` on each of these nodes, and sets `servers` to
# the pid to watch. The servers ignore the signals that Slurm sends to all processes of a job, because the trainer needs
# them to finish its update.
start_servers() {
    local chosen=$1 node table=""
    shift
    for node in ${chosen//,/ }; do table+="$node ${address_of[$node]} "; done
    # shellcheck disable=SC2016 # expanded on each node
    step server "$SERVER_CONTAINER" 1 "$chosen" bash -c '
        trap "" TERM USR1
        table=" $1" folder=$2/$SLURMD_NODENAME
        shift 2
        address=${table##* "$SLURMD_NODENAME" }
        mkdir -p "$folder"
        exec "$@" --address "${address%% *}" --folder "$folder"' _ "$table" "$attempt" \
        "$SERVER_PYTHON" -m megatron_sspo serve "$@" --port "$((first_port + 1))" \
        --set "rollouts.options.python=$SERVER_PYTHON" &
    servers=$!
}

# await_servers NODES: waits until all servers answer, and sets `urls` to their URLs.
await_servers() {
    local node said=$SECONDS
    urls=()
    for node in ${1//,/ }; do
        until [[ -s $attempt/$node/urls ]]; do
            all_running "$servers" || return 1
            if [[ ${leaving:-} ]]; then return 0; fi
            if ((SECONDS - said >= 60)); then
                said=$SECONDS
                say "waiting for the servers on $node, for $SECONDS s now: $attempt/server-$node.log"
            fi
            pause
        done
        mapfile -t -O "${#urls[@]}" urls <"$attempt/$node/urls"
    done
    say "${#urls[@]} servers answer: ${urls[*]}"
}
