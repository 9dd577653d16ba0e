#!/bin/sh
# Runs a command under a memory limit: cgroup_run.sh MIB COMMAND [ARG]...
#
# A control group of its own, version 2 or 1, whichever is writable (as a rule: by root); page cache that
# the command brings in counts too. Its exit status is the command's; 125 where no group can be made. Tells
# on stderr the most memory that was charged, and whether the command was killed for it. File pages that
# were in the page cache before are charged to nobody: drop them first (side_by_side.py does).
set -u
if [ $# -lt 2 ]; then
    echo "usage: cgroup_run.sh MIB COMMAND [ARG]..." >&2
    exit 2
fi
limit_mib=$1
shift
limit=$((limit_mib * 1048576))
name=sluice-peer-$$
group=

# Folders of the hierarchy of version $1 where a group may be made: our own, its parent, the top.
places() {
    mount=$(awk -v want="$1" '
        want == 2 && $3 == "cgroup2" || want == 1 && $3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/ { print $2; exit }
    ' /proc/mounts)
    [ -n "$mount" ] || return 0
    if [ "$1" = 2 ]; then
        own=$(sed -n 's/^0:://p' /proc/self/cgroup)
    else
        own=$(awk -F: '$2 ~ /(^|,)memory(,|$)/ { print $3 }' /proc/self/cgroup)
    fi
    for at in "$own" "$(dirname "${own:-/}")" /; do
        echo "$mount${at%/}"
    done
}

make_v2() {
    for at in $(places 2); do
        [ -d "$at" ] && grep -qw memory "$at/cgroup.controllers" 2>/dev/null || continue
        grep -qw memory "$at/cgroup.subtree_control" ||
            (echo +memory >"$at/cgroup.subtree_control") 2>/dev/null || continue
        mkdir "$at/$name" 2>/dev/null || continue
        if (echo "$limit" >"$at/$name/memory.max") 2>/dev/null; then
            (echo 0 >"$at/$name/memory.swap.max") 2>/dev/null
            group=$at/$name peak=memory.peak events=memory.events
            return 0
        fi
        rmdir "$at/$name"
    done
    return 1
}

make_v1() {
    for at in $(places 1); do
        mkdir "$at/$name" 2>/dev/null || continue
        if (echo "$limit" >"$at/$name/memory.limit_in_bytes") 2>/dev/null; then
            (echo "$limit" >"$at/$name/memory.memsw.limit_in_bytes") 2>/dev/null
            group=$at/$name peak=memory.max_usage_in_bytes events=memory.oom_control
            return 0
        fi
        rmdir "$at/$name"
    done
    return 1
}

if ! make_v2 && ! make_v1; then
    echo "cgroup_run.sh: no memory control group can be made here: neither version 2 nor version 1 is writable" >&2
    exit 125
fi
trap 'rmdir "$group" 2>/dev/null' EXIT
trap 'exit 130' INT TERM
SLUICE_LIMIT_MIB=$limit_mib sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
status=$?
charged=$(cat "$group/$peak" 2>/dev/null || echo 0)
kills=$(awk '$1 == "oom_kill" { print $2 }' "$group/$events" 2>/dev/null)
echo "cgroup_run.sh: limit $limit_mib MiB, peak charged $((charged / 1048576)) MiB," \
    "killed for memory ${kills:-?} times" >&2
exit $status
