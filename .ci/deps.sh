#!/bin/sh
# Installs the packages that the build needs; `deps.sh demo`, `check` and `fuzz` what those need more.
#
# Owns: the list of packages. What is missing is asked of the compiler, not of the package manager,
# so that a library built by hand is as good. Does nothing when all is there; where it may not
# install, it prints the line to run and fails.
set -eu
CC=${CC:-gcc}
goal=${1:-build}
missing=

has_header() {
    printf '#include <stdarg.h>\n#include <stddef.h>\n#include <setjmp.h>\n#include <%s>\n' "$1" |
        $CC -E -DPCRE2_CODE_UNIT_WIDTH=8 -
}

need() { # package, then a command that succeeds when it is there
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

need build-essential sh -c "command -v $CC && command -v make && command -v ar"
need libjansson-dev has_header jansson.h
need libpcre2-dev has_header pcre2.h
need libutf8proc-dev has_header utf8proc.h
need liburing-dev has_header liburing.h
need libhwloc-dev has_header hwloc.h
need libzstd-dev has_header zstd.h
need libisal-dev has_header isa-l/crc.h
case $goal in
demo)
    need python3-pip python3 -m pip --version
    ;;
check)
    need libcmocka-dev has_header cmocka.h
    need g++ sh -c "command -v ${CXX:-g++}"
    need binutils sh -c 'command -v addr2line'
    need python3-pip python3 -m pip --version
    need python3-venv python3 -c 'import venv, ensurepip'
    need slurm-wlm sh -c 'command -v slurmctld && command -v slurmd && command -v sbatch'
    need munge sh -c 'command -v munged'
    need openmpi-bin sh -c 'command -v mpirun'
    need libopenmpi-dev sh -c 'command -v mpicc'
    need locales test -e /usr/share/i18n/locales/de_DE
    ;;
fuzz)
    need clang command -v clang
    need libclang-rt-14-dev sh -c 'ls "$(clang -print-resource-dir)"/lib/linux/libclang_rt.fuzzer-*.a'
    ;;
esac
[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends$missing"
export DEBIAN_FRONTEND=noninteractive
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo -n "$@" </dev/null
    fi
}
if command -v apt-get >/dev/null 2>&1; then
    # Package lists may be empty or old, as in a fresh container: then fetch them and try again.
    as_root $install || { as_root apt-get update && as_root $install; } && exit 0
fi
echo "missing:$missing" >&2
echo "on Debian or Ubuntu, as root, run: $install" >&2
exit 1
