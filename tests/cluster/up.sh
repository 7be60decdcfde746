#!/usr/bin/env bash
# Brings up a Slurm cluster of four nodes on this machine, for tests: real daemons, each node with a network namespace,
# an address and a host name of its own, two GPUs that are only counted, accounting, pre-emption, and the options of
# pyxis. Needs root, and what `make install-cluster` installs. A cluster that is up stays as it is.
#
#     tests/cluster/up.sh && . /tmp/megatron_sspo_cluster/env.sh && sinfo
#
# Everything is kept in one folder, MEGATRON_SSPO_CLUSTER; down.sh takes all of it away.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=layout.sh
. "$here/layout.sh"

main() {
    ((EUID == 0)) || fail "network namespaces and daemons need root"
    if is_up; then
        echo "up.sh: it is up already: . $root/env.sh"
        return
    fi
    "$here/down.sh"
    local started=$EPOCHREALTIME
    mkdir -p "$root"/{etc,run,log,state,spool,dev}
    write_configuration
    start_munge
    start_accounting
    make_network
    slurmctld
    start_nodes
    await 60 is_up || fail "not all nodes came up: see $root/log"
    sinfo --Node --format="%N %P %T %c %G"
    printf 'up.sh: %s nodes in %.1f s: . %s/env.sh\n' "$num_nodes" \
        "$(seconds_between "$started" "$EPOCHREALTIME")" "$root"
}

is_up() {
    alive slurmctld && (($(sinfo --noheader --Node --partition=batch --format=%T | grep -cE '^(idle|mixed|alloc|compl)') == num_nodes))
}

# Seconds between two values of EPOCHREALTIME.
seconds_between() {
    awk -v from="$1" -v to="$2" 'BEGIN { print to - from }'
}

write_configuration() {
    local name i
    for name in slurm.conf slurmdbd.conf; do
        sed -e "s|@ROOT@|$root|g" -e "s|@SUBNET@|$subnet|g" -e "s|@HOST@|$(hostname -s)|g" \
            "$here/$name" >"$root/etc/$name"
    done
    chmod 600 "$root/etc/slurmdbd.conf" # slurmdbd insists
    {
        echo "127.0.0.1 localhost"
        echo "$subnet.254 $(hostname -s)"
        for ((i = 1; i <= num_nodes; i++)); do echo "$subnet.$i n$i"; done
    } >"$root/etc/hosts"
    for ((i = 1; i <= num_nodes; i++)); do
        echo "NodeName=n$i NodeAddr=$subnet.$i Port=17010 CPUs=16 RealMemory=8000 Gres=gpu:2" >>"$root/etc/slurm.conf"
        mkdir -p "$root/spool/n$i"
    done
    for ((i = 0; i < 2; i++)); do mknod "$root/dev/gpu$i" c 1 3; done
    echo "Name=gpu File=$root/dev/gpu[0-1]" >"$root/etc/gres.conf"
    echo "CgroupPlugin=cgroup/v1" >"$root/etc/cgroup.conf"
    gcc -shared -fPIC -O2 -Wall -o "$root/run/pyxis_stub.so" "$here/pyxis_stub.c"
    echo "required $root/run/pyxis_stub.so" >"$root/etc/plugstack.conf"
    echo "export SLURM_CONF=$SLURM_CONF" >"$root/env.sh"
}

start_munge() {
    (umask 077 && head -c 1024 /dev/urandom >"$root/etc/munge.key")
    munged --force --key-file="$root/etc/munge.key" --socket="$root/run/munge.socket" \
        --pid-file="$root/run/munged.pid" --log-file="$root/log/munged.log" --seed-file="$root/run/munged.seed" \
        2>>"$root/log/munged.log"
}

start_accounting() {
    mariadb-install-db --no-defaults --user=root --datadir="$root/mysql" --skip-test-db \
        --auth-root-authentication-method=normal >"$root/log/mariadb-install.log" 2>&1
    setsid mariadbd --no-defaults --user=root --datadir="$root/mysql" --socket="$root/run/mysql.sock" \
        --pid-file="$root/run/mariadbd.pid" --bind-address=127.0.0.1 --port=17002 --skip-grant-tables --skip-log-bin \
        --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 \
        >"$root/log/mariadbd.log" 2>&1 </dev/null &
    await 60 mariadb-admin --no-defaults -S "$root/run/mysql.sock" ping || fail "no database: see $root/log/mariadbd.log"
    slurmdbd
    await 60 sacctmgr -n -i show cluster || fail "no accounting: see $root/log/slurmdbd.log"
    sacctmgr -i -Q add cluster test >/dev/null
    sacctmgr -i -Q add account test >/dev/null
    sacctmgr -i -Q add user root account=test >/dev/null
}

make_network() {
    local i
    ip link add "$bridge" type bridge
    ip addr add "$subnet.254/24" dev "$bridge"
    ip link set "$bridge" up
    for ((i = 1; i <= num_nodes; i++)); do
        ip netns add "$bridge-n$i"
        ip link add "sspo-n$i" type veth peer name eth0 netns "$bridge-n$i"
        ip link set "sspo-n$i" master "$bridge" up
        ip -n "$bridge-n$i" addr add "$subnet.$i/24" dev eth0
        ip -n "$bridge-n$i" link set eth0 up
        ip -n "$bridge-n$i" link set lo up
    done
}

start_nodes() {
    local i
    for ((i = 1; i <= num_nodes; i++)); do "$here/node.sh" "$i"; done
}

main
