#!/bin/sh
# Tries a kit (make gpu-kit) where there is nothing: bare.sh KIT; as root.
#
# A root with the kit, /proc, /dev and /tmp, and no library, shell or /usr: the kit's loader starts the program on the
# CPU and on the simulated accelerator, both OUTs have to be the same; then tests of ops, then ./sluice as a script (by
# a shell brought along for that). Says `bare: ok`; anything else is a failure.
set -eu
kit=$(cd "$1" && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir "$root/proc" "$root/dev" "$root/tmp"
cp -a "$kit" "$root/kit"
cp "$(readlink -f "$(command -v dash)")" "$root/dash"
cat >"$root/model.cfg" <<'MODEL'
family = llama
dim = 128
layers = 4
heads = 4
ffn = 256
vocab = 5000
context = 512
MODEL
for i in 1 2 3 4 5 6; do
    echo "{\"prompt_token_ids\":[$i,9,8,7,6,5],\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true}"
done >"$root/in.jsonl"

# Everything below sees the new root only.
chroot=$(command -v chroot)
export root chroot
unshare --mount sh -eu <<'INSIDE'
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
in_root() {
    env -i HWLOC_HIDE_ERRORS=2 SLUICE_CACHE_DIR=/tmp/cache SLUICE_TEST_DEVICE="${device:-}" "$chroot" "$root" "$@"
}
loader="/kit/glibc/ld-linux-x86-64.so.2 --library-path /kit/glibc:/kit/lib"
job="-m /model.cfg -i /in.jsonl --compute f32 --kv-format f32 --progress none -q"
sim=/kit/build/tests/sim_device.so:1,20
in_root $loader /kit/bin/sluice --version
in_root $loader /kit/bin/sluice run $job -o /cpu.jsonl --device cpu
in_root $loader /kit/bin/sluice run $job -o /sim.jsonl --device "$sim" --percent 0 50 0 50 0 0
cmp "$root/cpu.jsonl" "$root/sim.jsonl"
test "$(wc -l <"$root/cpu.jsonl")" = 6
device=$sim
in_root $loader /kit/bin/flat_test >/dev/null 2>&1
in_root $loader /kit/bin/head_test >/dev/null 2>&1
device=
in_root $loader /dash /kit/sluice run $job -o /script.jsonl --device cpu
cmp "$root/cpu.jsonl" "$root/script.jsonl"
if [ -e "$root/kit/bin/sluice-cuda.so" ] && [ ! -e /dev/nvidiactl ]; then # found and loaded; there is no driver
    in_root $loader /kit/bin/sluice run $job -o /cuda.jsonl --device cuda >"$root/said" 2>&1 && exit 1
    grep -i 'sluice: error: .*\(cuda\|device\|driver\)' "$root/said"
    ! grep 'not found (install\|no such card\|cannot open\|undefined symbol' "$root/said"
fi
INSIDE
echo "bare: ok"
