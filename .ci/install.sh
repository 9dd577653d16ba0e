#!/bin/sh
# Installs the program that was built, or removes what was installed: install.sh install|uninstall
#
#   BIN=./sluice LIB_SO=build/libsluice.so.0 CUDA_SO= PREFIX=/usr/local DESTDIR= .ci/install.sh install
#
# Owns: where each file goes, and share/sluice/installed, the list of the files and folders that were made.
# `uninstall` removes what the list names, and of folders only those that install made and that are empty.
# Paths in the list have no DESTDIR, so that a staged tree may be moved to its place.
set -eu
PREFIX=${PREFIX:-/usr/local} DESTDIR=${DESTDIR:-}
list=$PREFIX/share/sluice/installed

folder() { # path: made with the folders above it; those that are new are listed
    [ -d "$DESTDIR$1" ] && return 0
    case $1 in */*/*) folder "${1%/*}" ;; *) mkdir -p "$DESTDIR/" ;; esac
    mkdir -m 755 "$DESTDIR$1"
    made="$made$1/
"
}

put() { # file, path under PREFIX, mode
    path=$PREFIX/$2
    folder "${path%/*}"
    install -m "$3" "$1" "$DESTDIR$path"
    made="$made$path
"
}

link() { # target, path under PREFIX
    path=$PREFIX/$2
    ln -sf "$1" "$DESTDIR$path"
    made="$made$path
"
}

put_made() { # path under PREFIX, words of `sluice help` that print the file
    at=$1
    shift
    "$BIN" help "$@" >"$work"
    put "$work" "$at" 644
}

install_all() {
    made=
    work=$(mktemp)
    trap 'rm -f "$work"' EXIT
    strip -o "$work" "$BIN"
    put "$work" bin/sluice 755
    strip -o "$work" "$LIB_SO"
    put "$work" lib/libsluice.so.0 755
    link libsluice.so.0 lib/libsluice.so
    put engine/api/sluice.h include/sluice.h 644
    printf 'prefix=%s\nName: sluice\nDescription: %s\nVersion: %s\nLibs: -L${prefix}/lib -lsluice\nCflags: -I${prefix}/include\n' \
        "$PREFIX" "generation with language models that do not fit the memory" "$("$BIN" --version | cut -d' ' -f2)" >"$work"
    put "$work" lib/pkgconfig/sluice.pc 644
    put engine/api/example.c share/doc/sluice/example.c 644
    [ -z "${CUDA_SO:-}" ] || put "$CUDA_SO" lib/sluice/sluice-cuda.so 755
    [ ! -e "$BIN-mpi.so" ] || put "$BIN-mpi.so" lib/sluice/sluice-mpi.so 755
    put_made share/man/man1/sluice.1 --man
    put_made share/bash-completion/completions/sluice --completion bash
    put_made share/zsh/site-functions/_sluice --completion zsh
    put_made share/fish/vendor_completions.d/sluice.fish --completion fish
    for file in configs/*.cfg configs/in.jsonl; do
        put "$file" "share/sluice/$file" 644
    done
    put LICENSE share/doc/sluice/LICENSE 644
    : >"$work"
    [ ! -e "$DESTDIR$list" ] || cp "$DESTDIR$list" "$work"
    printf '%s%s\n' "$made" "$list" | LC_ALL=C sort -u - "$work" -o "$work"
    install -m 644 "$work" "$DESTDIR$list"
    echo "installed $DESTDIR$PREFIX/bin/sluice"
}

# In reverse order a folder comes behind all that is in it.
uninstall_all() {
    [ -e "$DESTDIR$list" ] || { echo "$DESTDIR$list: not installed here (PREFIX=, DESTDIR=)" >&2; exit 1; }
    LC_ALL=C sort -r "$DESTDIR$list" | while IFS= read -r path; do
        case $path in
        */) rmdir "$DESTDIR$path" 2>/dev/null || true ;;
        *) rm -f "$DESTDIR$path" ;;
        esac
    done
    echo "removed $DESTDIR$PREFIX/bin/sluice"
}

case ${1:-} in
install) install_all ;;
uninstall) uninstall_all ;;
*) echo "install.sh install|uninstall" >&2 && exit 2 ;;
esac
