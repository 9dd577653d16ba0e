#!/usr/bin/env python3
"""What tools/sass.py counts in machine code, on a short disassembly whose counts are known; the machine files of cards that are made
from such counts; from level full on, where nvcc is, the bounds of the kernels themselves: sass_test.py [--only PART]"""
import os
import subprocess
import sys

import trial

TREE = os.path.dirname(trial.HERE)
sys.path.insert(0, os.path.join(trial.HERE, "tools"))
import sass  # noqa: E402
import sass_read  # noqa: E402

SOURCE = """\
template <int KIND>
DEVICE void page_values(const float *v)
{
    for (int i = 0; i < 32; i++)
        sum += v[i];
}
/* A kernel. */
template <int R>
__global__ void __launch_bounds__(THREADS, R == 1 ? 4 : 2)
    walk(const struct task t)
{
    page_values<KV_BF16>(t.v);
    for (;;)
        multiply();
}
"""
# Two loops of a kernel: one that loads, with an early way out to a second part; one of tensor cores, with a loop within.
TEXT = """\
 .section .text.walk,"ax",@progbits
.text.walk:
 //## File "@", line 12
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   MOV R20, RZ ;
.L_x_0:
 //## File "@", line 5 inlined at "@", line 12
 //## File "@", line 12
        /*0020*/                   LDG.E R4, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E.U16 R5, desc[UR4][R2.64+0x80] ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/                   LDG.E.128 R8, desc[UR4][R2.64+0x100] ;
        /*0060*/                   LDG.E.64.CONSTANT R12, desc[UR4][R2.64+0x200] ;
        /*0070*/                   FFMA R20, R4, R5, R20 ;
        /*0080*/                   FFMA R20, R11, R20, R20 ;
.L_x_1:
        /*0090*/                   LDG.E R16, desc[UR4][R2.64+0x300] ;
        /*00a0*/                   LDG.E R17, desc[UR4][R2.64+0x380] ;
        /*00b0*/                   IADD3 R2, P0, R2, 0x400, RZ ;
        /*00b4*/                   LDG.E R5, desc[UR4][R2.64] ;
        /*00b8*/                   FFMA R20, R13, R16, R17 ;
        /*00bc*/                   ISETP.NE.AND P0, PT, R2, R6, PT ;
 //## File "@", line 4 inlined at "@", line 12
 //## File "@", line 12
        /*00c0*/               @P0 BRA `(.L_x_0) ;
 //## File "@", line 13
        /*00d0*/                   MOV R30, RZ ;
.L_x_2:
        /*00e0*/                   DEPBAR.LE SB0, 0x2 ;
        /*00f0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_3:
        /*0100*/                   LDGSTS.E.BYPASS.128 [R21], desc[UR8][R22.64], !P0 ;
        /*0110*/                   IADD3 R22, R22, 0x10, RZ ;
 //## File "@", line 14
        /*0120*/              @!P2 BRA `(.L_x_3) ;
        /*0130*/                   LDGDEPBAR ;
        /*0140*/                   LDSM.16.M88.4 R40, [R39] ;
        /*0150*/                   HMMA.16816.F32.BF16 R24, R40, R44, R24 ;
        /*0160*/                   HFMA2.MMA R50, -RZ, RZ, 0, 0 ;
        /*0170*/                   HMMA.16816.F32.BF16 R28, R40, R46, R28 ;
 //## File "@", line 13
        /*0180*/              @!P3 BRA `(.L_x_2) ;
        /*0190*/                   EXIT ;
.L_x_4:
        /*01a0*/                   BRA `(.L_x_4) ;
 .section .nv.info.walk,"",@"SHT_CUDA_INFO"
 //----- nvinfo : EIATTR_MAX_THREADS
 .align  4
        /*0000*/  .byte 0x04, 0x05
        /*0002*/  .short (.L_81 - .L_80)
.L_80:
        /*0004*/  .word 0x00000100
        /*0008*/  .word 0x00000001
 .section .nv.info.other,"",@"SHT_CUDA_INFO"
        /*0000*/  .word 0x00000020
"""


def reading(tally, place, _):
    """Loops, their names, what they hold and what is in flight."""
    source = os.path.join(place.folder, "walk.cu")
    with open(source, "w", encoding="utf-8") as f:
        f.write(SOURCE)
    text = TEXT.replace('"@"', f'"{source}"')
    (f,) = sass_read.functions(text)
    tally.check(len(f.code) == 30, f"{len(f.code)} instructions read, not 30")
    tally.check(sass_read.threads(text) == {"walk": 256}, f"threads {sass_read.threads(text)}")
    loops = f.loops()
    tally.check(len(loops) == 3, f"{len(loops)} loops, not 3: what no way leads to is none")
    load, tile = sass_read.hottest(loops, "KV_BF16 page_values$"), sass_read.hottest(loops, "walk$")
    if not tally.check(load and tile and len(load.code) == 14, "the loop of page_values, of 14 instructions, is not found"):
        return
    tally.check((load.loads, load.load_bytes) == (5, 30), f"in flight {load.loads} loads, {load.load_bytes} bytes; not 5, 30")
    tally.check(len(tile.code) == 11 and len(tile.own) == 8, f"tile: {len(tile.code)} instructions, {len(tile.own)} its own")
    got = sass.loop_counts(load, 0.5, 90, 256, 2, 0)
    want = {"instructions": 14, "mma": 0, "instructions_per_mma": "", "ffma_share": 0.214, "load_bytes": 4, "byte_loads": 0,
            "loads_in_flight": 5, "bytes_in_flight_per_sm": 7680, "needed_bytes_per_sm": 19034, "in_flight_ratio": 0.4}
    tally.check(got == want, f"the loop of loads: {got}")
    got = sass.loop_counts(tile, 1, 75, 256, 1, 65536)
    want = {"instructions": 11, "mma": 2, "instructions_per_mma": 5.5, "ffma_share": 0.0, "load_bytes": 16, "byte_loads": 0,
            "loads_in_flight": 12, "bytes_in_flight_per_sm": 49152, "needed_bytes_per_sm": 4800, "in_flight_ratio": 10.24}
    tally.check(got == want, f"the loop of tensor cores, 3 stages of 4 under way: {got}")
    unrolled = sass_read.functions(text.replace("@!P2 BRA `(.L_x_3)", "NOP"))[0].loops()
    got = sass.loop_counts(sass_read.hottest(unrolled, "walk$"), 1, 75, 256, 1, 65536)["loads_in_flight"]
    tally.check(got == 3, f"{got} copies in flight where the loop within is unrolled, not 3: one of each stage")
    bytewise = sass_read.functions(text.replace("LDG.E R4", "LDG.E.U8 R4"))[0].loops()
    got = sass.loop_counts(sass_read.hottest(bytewise, "page_values"), 0.5, 90, 256, 2, 0)["byte_loads"]
    tally.check(got == 1, f"{got} loads of a byte, not 1")


def occupancy(tally, *_):
    """Blocks per SM, each time bounded by another thing; as NVIDIA's occupancy calculator has them."""
    for arch, registers, threads, shared, blocks, what in (
            (90, 128, 256, 0, 2, "registers"), (90, 129, 256, 0, 1, "registers"),
            (90, 100, 32, 0, 16, "registers in units of 8, and quarters of an SM"), (90, 56, 256, 1728, 4, "registers"),
            (90, 32, 256, 0, 8, "threads"), (90, 16, 32, 0, 32, "blocks"), (75, 16, 32, 0, 16, "blocks"),
            (90, 32, 64, 49152, 4, "shared memory, and 1 KiB of each block"), (80, 32, 64, 49152, 3, "shared memory"),
            (86, 32, 64, 49152, 2, "shared memory"), (75, 32, 64, 49152, 1, "shared memory"), (86, 40, 256, 0, 6, "threads")):
        got = sass.blocks_per_sm(arch, registers, threads, shared)
        tally.check(got == blocks, f"sm_{arch}, {registers} registers, {threads} threads, {shared} bytes: {got} blocks, not {blocks} ({what})")


def judging(tally, *_):
    """A bound is broken by one unit, and where no row meets it; a loop that no kernel has is told."""
    def rows(**more):
        every = [{"kernel": k.name, "arch": "sm_90", "loop": x.name} for k in sass.KERNELS for x in k.loops]
        return [*every, {"kernel": "matmul_mma_tile<128, 128, 32, 64, 32, 2>", "arch": "sm_90", "loop": "mma", **more}]

    bounds = sass.BOUNDS
    try:
        sass.BOUNDS = (sass.Bound("matmul_mma", (90,), "mma", "byte_loads", "<=", 0), sass.Bound("matmul", (90,), "mma", "load_bytes", ">=", 16))
        for more, n in (({"byte_loads": 0, "load_bytes": 16}, 0), ({"byte_loads": 1, "load_bytes": 16}, 1),
                        ({"byte_loads": 0, "load_bytes": 8}, 1), ({"load_bytes": 16}, 1)):
            got = list(sass.broken(rows(**more), [90]))
            tally.check(len(got) == n, f"{more}: {n} bounds are broken, told are {got}")
        got = list(sass.broken(rows(byte_loads=0, load_bytes=16)[1:-1], [90]))
        tally.check(any("no loop is called" in x for x in got), f"a loop that is not there: {got}")
    finally:
        sass.BOUNDS = bounds


@trial.from_full
def kernels(tally, *_):
    """The kernels as nvcc compiles them here are within the bounds of BOUNDS."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CUDA")}
    done = subprocess.run(["make", "--no-print-directory", "sass", "ARGS=--check", f"SLUICE_PYTHON={sys.executable}"], cwd=TREE, env=env,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if "make sass needs nvcc" in done.stderr:
        tally.skip("no nvcc: the CUDA kernels are not counted")
    elif "sass: no nvdisasm" in done.stderr:
        tally.skip(done.stderr[done.stderr.index("no nvdisasm"):].splitlines()[0])
    else:
        tally.check(done.returncode == 0, f"make sass: {(done.stdout + done.stderr)[-1500:]}")


def machines(tally, *_):
    """configs/machine-*.cfg says of a card what bench/gpu's model says by today's counts."""
    model = os.path.join(os.environ.get("BUILD", "build"), "bench/gpu_model")
    names = sorted(x[len("machine-"):-len(".cfg")] for x in os.listdir(os.path.join(TREE, "configs")) if x.startswith("machine-"))
    tally.check(len(names) > 5, f"machine files: {names}")
    for name in names:
        with open(os.path.join(TREE, "configs", f"machine-{name}.cfg"), encoding="utf-8") as f:
            said = f.read().splitlines()
        if not any(line.startswith("device_memory") for line in said):
            continue
        done = subprocess.run([model, "--sass", "bench/results/cuda-sass.csv", "--machine", name], cwd=TREE, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        tally.check(done.returncode == 0 and len(lines) == 8, f"gpu_model --machine {name}: exit {done.returncode}: {lines} {done.stderr}")
        stale = [line for line in lines if line not in said]
        tally.check(not stale, f"configs/machine-{name}.cfg lacks {stale} (make bench-gpu-machines)")


if __name__ == "__main__":
    sys.exit(trial.run_parts(__doc__, (reading, occupancy, judging, machines, kernels)))
