#!/usr/bin/env bash
# Starts the daemon of node number $1, in the network namespace that up.sh has made.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=layout.sh
. "$here/layout.sh"

# shellcheck disable=SC2016 # expanded in there
nsenter --net="/run/netns/$bridge-n$1" unshare --uts --mount --propagation slave bash -c '
    hostname "$1" && mount --bind "$2/etc/hosts" /etc/hosts && exec slurmd -N "$1"' _ "n$1" "$root"
