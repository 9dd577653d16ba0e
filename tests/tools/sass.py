#!/usr/bin/env python3
"""Counts the machine code of the CUDA kernels, without a card, into a table, and fails where a bound of BOUNDS is broken.
usage: sass.py [--check] [-o FILE.csv] NVCC FLAGS... -- ARCH...

Every file of kernels/cuda is compiled once for each architecture. Of each kernel: registers, spills, shared memory, blocks per
SM; of its hot loops (KERNELS): instructions, mma, loads in flight, and the bytes in flight per SM beside what Little's law
asks for (CARDS). `make sass` writes the CSV. It keeps the rows of the first commit in the file, to compare with, and replaces all others.
--check writes nothing. Exits 1 when a bound is broken or nvdisasm is missing.
Owns: the tables KERNELS, CARDS, SMS, BOUNDS. Refuses: to know SASS (sass_read.py).
"""
import collections
import concurrent.futures
import csv
import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import sass_read  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
COLUMNS = ("commit", "kernel", "file", "arch", "registers", "spill_bytes", "stack_bytes", "shared_bytes", "threads", "blocks_per_sm",
           "loop", "instructions", "mma", "instructions_per_mma", "ffma_share", "load_bytes", "byte_loads", "loads_in_flight",
           "bytes_in_flight_per_sm", "needed_bytes_per_sm", "in_flight_ratio")

# ---- what cards have

# Per SM: threads, blocks, bytes of shared memory in all, bytes of it that each block costs beside its own, their unit.
# Registers are 65,536 everywhere, given to a warp in units of 256, to the four quarters of an SM apart.
Sm = collections.namedtuple("Sm", "threads blocks shared block_shared unit")
SMS = {75: Sm(1024, 16, 64 << 10, 0, 256), 80: Sm(2048, 32, 164 << 10, 1024, 128), 86: Sm(1536, 16, 100 << 10, 1024, 128),
       89: Sm(1536, 24, 100 << 10, 1024, 128), 90: Sm(2048, 32, 228 << 10, 1024, 128)}

# The card of each architecture: published bytes per second of its memory, SMs, and the latency of a load while memory is
# busy, which is assumed. In flight per SM there have to be bytes per second x latency / SMs (Little's law).
Card = collections.namedtuple("Card", "name bytes_s sms latency_s")
CARDS = {75: Card("T4", 320e9, 40, 0.6e-6), 80: Card("A100 40 GB", 1.555e12, 108, 0.6e-6), 86: Card("A10", 600e9, 72, 0.6e-6),
         89: Card("RTX 4090", 1.008e12, 128, 0.6e-6), 90: Card("H100 SXM", 3.35e12, 132, 0.75e-6)}

# ---- the hot kernels

AMPERE = (80, 86, 89, 90)  # and above
ALL = (75, *AMPERE)
D = 128  # dimensions of a head, in the launches that these tables stand for; KV in bf16


def ring_bytes(arch, bm, bn, bk, _wm, _wn, stages, *_):
    """Shared bytes of a matmul tile; sm_75 takes two stages in turns."""
    return (2 if arch < 80 else stages) * (bm + bn) * bk * 2


def panel_bytes(_arch, bm, bn, bk, _wm, _wn, ahead):
    """Of a matmul over panels: x, two stages of W, and stored bytes of pieces of 64 numbers in 4.5 bits."""
    return ((ahead + 1) * bm + 2 * bn) * bk * 2 + ((((ahead - 1) * bk + 63) >> 6) + 1) * bn // 32 * 1152


def codes_bytes(arch, bm, bn, _halves, _wm, groups, stages, q4):
    """Of a matmul over codes: a stage has groups of 64 numbers of W, and of x with a scale and a sum; sm_75 takes two in turns."""
    return (2 if arch < 80 else stages) * groups * (bn // 32 * (1152 if q4 else 2176) + bm * 72)


def codes_share(bm, bn, halves, wm, groups, _stages, q4):
    """W's part of what its threads copy: 16 bytes a piece, and 24 of heads, which not all threads have."""
    threads = bn // (16 * halves) * (bm // wm) * 32
    pieces = groups * (bn * (32 if q4 else 64) + bm * 64) // 16 // threads
    return groups * bn // 32 * (1152 if q4 else 2176) / (threads * (16 * pieces + 24))


def q_bytes(arch, bm, bn, _wm, _wn, groups, stages, q4):
    """Of a matmul over panels of q8 and q4: a stage has groups of 64 numbers of W, and of x in 16 bits; sm_75 takes two in turns."""
    return (2 if arch < 80 else stages) * groups * (bn // 32 * (1152 if q4 else 2176) + bm * 128)


def q_share(bm, bn, wm, wn, groups, _stages, q4):
    """W's part of what its threads copy: 16 bytes a piece; not all threads have the last one of W."""
    w, x, turn = groups * bn // 32 * (1152 if q4 else 2176), groups * bm * 128, bm // wm * (bn // wn) * 32 * 16
    return w / (turn * (-(-w // turn) + x // turn))


def split_bytes(_arch, r):
    """Of forced_split: q, exps of 256 slots, stages of V and what is small beside them."""
    return sum(-(-n // 16) * 16 for n in (4 * r * D, 4 * r, 4 * r * 256, 4, 4 * 2 * r * 8, 8 * 8, 4 * 8, 16 << 10))


def rows_bytes(_arch, _bf16, rows, dims=D // 32):
    """Of prompt_rows and prompt_scores: 8 warps of queries, and their weights for a page of 32 keys."""
    return 4 * 8 * rows * (32 * dims + 32)


def prompt_bytes(_arch, dims, mt):
    """Of prompt_rows_mma: queries of 4 warps, K and V of a page."""
    return 4 * mt * 16 * (dims + 8) * 2 + dims // 4 * 80 * 4 + 8 * (2 * dims + 16) * 4


# A hot loop; one that is called mma has such instructions. `path` is looked for in the functions that lie around the loop, outermost first ("forced_split split_run KV_BF16
# split_values page_values"). `share` is the part of the bytes that threads have in flight which memory has to send: less than 1
# where threads idle, where they read the same bytes, or where L2 has them. None: the loop computes, memory is not what bounds it.
# `rare`: functions whose instructions are left out, because few turns of the loop run them.
Loop = collections.namedtuple("Loop", "name path share rare", defaults=("",))
Kernel = collections.namedtuple("Kernel", "name shared loops archs", defaults=(ALL,))
KERNELS = (
    # Rows of x come from L2, rows of W from memory.
    Kernel("matmul_mma_tile", ring_bytes, (Loop("mma", "chunks_(async|held)$", lambda bm, bn, *_: bn / (bm + bn)),)),
    Kernel("matmul_q_tile", q_bytes, (Loop("mma", "groups_multiply$", q_share, "rest_fetch"),)),
    Kernel("matmul_panel_tile", panel_bytes, ()),  # the loop of sm_80 has no lines to be found by
    # In a loop over codes all lanes read the same ones of x; W's are loaded before.
    Kernel("matmul_int8_tile", lambda _arch, _q4, rows: 8 * 8 * (rows * 32 + 64 + rows),
           (Loop("groups", "matmul_int8_tile$", lambda *_: 1), Loop("rows", "group_multiply$", lambda *_: None))),
    Kernel("matmul_int8_mma_tile", codes_bytes, (Loop("mma", "groups_multiply$", codes_share),)),
    Kernel("forced_split", split_bytes, (Loop("K bf16", "KV_BF16 .*page_logits", lambda *_: 1),
                                         Loop("V bf16", "KV_BF16 .*split_values", lambda *_: 1))),
    Kernel("prompt_rows", rows_bytes, (Loop("K", "prompt_rows key_chains", lambda *_: None),
                                       Loop("V", "prompt_rows page_outputs", lambda *_: None))),
    Kernel("prompt_scores", lambda arch, bf16, rows: rows_bytes(arch, bf16, rows) + 4 * 8 * rows,
           (Loop("K", "prompt_scores key_chains", lambda *_: None),)),
    Kernel("prompt_rows_mma", prompt_bytes, (Loop("mma", "prompt_rows_mma$", lambda *_: None, "page_cap|part_|fetch_part|sums_follow"),), AMPERE),
    Kernel("prompt_scores_mma", lambda _arch, dims, _mt, _hits: 32 * (dims + 8) * 2 + 256,
           (Loop("mma", "prompt_scores_mma$", lambda *_: None, "keys_cap|next_totals"),), AMPERE),
    Kernel("head_row", lambda _: 16 + 12 * 16 + 12 * (1024 + 20) + 1024 + 64 + 4 * 2 * (4096 + 16) + 512, (Loop("logits", "head_row$", lambda *_: 1),)),
    Kernel("norm_row", lambda _: 16 + 32768, (Loop("row", "staged_part$", lambda *_: 1),)),
)

# ---- what must hold

# In every row of these kernels (a regular expression), architectures and loop ("": all rows) the column is at most, or at least,
# the limit. A bound that no row meets is broken, too.
Bound = collections.namedtuple("Bound", "kernel archs loop column relation limit")
BOUNDS = (
    # A spilled register goes through memory and back.
    Bound("(?!forced_join|decode_|matmul_panel_tile|matmul_f32_tile<64|prompt_rows_mma<256)", AMPERE, "", "spill_bytes", "<=", 0),
    Bound("forced_join", AMPERE, "", "spill_bytes", "<=", 8),
    # Two and three words each way on sm_90 since they decode NVFP4 and zero points; without spills 5 blocks fit an SM instead of 8.
    Bound("decode_", AMPERE, "", "spill_bytes", "<=", 16),
    Bound("matmul_panel_tile", AMPERE, "", "spill_bytes", "<=", 24),
    # Three words each way on sm_80 since it decodes grids (iq1_* to iq3_*); a path of f32 only.
    Bound("matmul_f32_tile<64", AMPERE, "", "spill_bytes", "<=", 24),
    # Tiles: an SM issues four instructions a clock. sm_75 multiplies 8 numbers along k at a time, the others 16.
    Bound("matmul_mma_tile<128, 128, 32", (75,), "mma", "instructions_per_mma", "<=", 2.1),
    Bound("matmul_mma_tile<64, 64, 64", (75,), "mma", "instructions_per_mma", "<=", 3),
    Bound("matmul_mma_tile<64, 32, 64", (75,), "mma", "instructions_per_mma", "<=", 3.8),
    Bound("matmul_mma_tile<16, 32, 64", (75,), "mma", "instructions_per_mma", "<=", 6),
    Bound("matmul_mma_tile<128, 128, 32", AMPERE, "mma", "instructions_per_mma", "<=", 3.1),
    Bound("matmul_mma_tile<64, 64, 64", AMPERE, "mma", "instructions_per_mma", "<=", 4.1),
    Bound("matmul_mma_tile<64, 32, 64", AMPERE, "mma", "instructions_per_mma", "<=", 6),
    Bound("matmul_mma_tile<16, 32, 64", AMPERE, "mma", "instructions_per_mma", "<=", 9.1),
    Bound("matmul_mma_tile", ALL, "mma", "byte_loads", "<=", 0),
    Bound("matmul_mma_tile", ALL, "mma", "load_bytes", ">=", 16),
    Bound("matmul_mma_tile", ALL, "mma", "in_flight_ratio", ">=", 1.7),
    # q8 and q4: five to six instructions for a number that is decoded, once for 16, 64 or 128 rows, and those of the cores.
    Bound("matmul_q_tile<128,", (75,), "mma", "instructions_per_mma", "<=", 4.4),
    Bound("matmul_q_tile<64,", (75,), "mma", "instructions_per_mma", "<=", 4.5),
    Bound("matmul_q_tile<16,", (75,), "mma", "instructions_per_mma", "<=", 13.7),
    Bound("matmul_q_tile<128,", AMPERE, "mma", "instructions_per_mma", "<=", 6.7),
    Bound("matmul_q_tile<64,", AMPERE, "mma", "instructions_per_mma", "<=", 7.5),
    Bound("matmul_q_tile<16,", AMPERE, "mma", "instructions_per_mma", "<=", 23.1),
    Bound("matmul_q_tile", ALL, "mma", "byte_loads", "<=", 0),
    Bound("matmul_q_tile", ALL, "mma", "load_bytes", ">=", 16),
    Bound("matmul_q_tile<(16|64),", ALL, "mma", "in_flight_ratio", ">=", 1.4),
    # Codes: a group of 64 weights is on its way while the one before is multiplied.
    Bound("matmul_int8_tile", ALL, "groups", "loads_in_flight", ">=", 17),
    Bound("matmul_int8_tile", ALL, "rows", "load_bytes", ">=", 16),
    # Codes on tensor cores: two steps a group, then three (q8) or four (q4) instructions for each of a lane's outputs.
    Bound("matmul_int8_mma_tile<128,", (75,), "mma", "instructions_per_mma", "<=", 4),
    Bound("matmul_int8_mma_tile<64,", (75,), "mma", "instructions_per_mma", "<=", 5),
    Bound("matmul_int8_mma_tile<32,", (75,), "mma", "instructions_per_mma", "<=", 6.2),
    Bound("matmul_int8_mma_tile<16,", (75,), "mma", "instructions_per_mma", "<=", 7.5),
    Bound("matmul_int8_mma_tile<128,", AMPERE, "mma", "instructions_per_mma", "<=", 14.6),
    Bound("matmul_int8_mma_tile<64,", AMPERE, "mma", "instructions_per_mma", "<=", 15.6),
    Bound("matmul_int8_mma_tile<32,", AMPERE, "mma", "instructions_per_mma", "<=", 20.2),
    Bound("matmul_int8_mma_tile<16,", AMPERE, "mma", "instructions_per_mma", "<=", 27.6),
    Bound("matmul_int8_mma_tile", ALL, "mma", "byte_loads", "<=", 0),
    Bound("matmul_int8_mma_tile", ALL, "mma", "load_bytes", ">=", 16),
    Bound("matmul_int8_mma_tile<(16|32|64),", ALL, "mma", "in_flight_ratio", ">=", 1.8),
    # Attention of a decode step reads K and V once: loads in flight are all that matters.
    Bound("forced_split", ALL, "K bf16", "loads_in_flight", ">=", 14),
    Bound("forced_split", ALL, "V bf16", "load_bytes", ">=", 16),
    Bound("forced_split", ALL, "V bf16", "in_flight_ratio", ">=", 1.7),
    # Attention of prompts computes; the outputs of 256 dimensions take half of a thread's registers.
    Bound("prompt_rows_mma<256", AMPERE, "", "spill_bytes", "<=", 48),
    Bound("prompt_rows_mma<128", AMPERE, "mma", "instructions_per_mma", "<=", 6),
    Bound("prompt_rows_mma<64", AMPERE, "mma", "instructions_per_mma", "<=", 9),
    Bound("prompt_scores_mma<128, 2, 0", AMPERE, "mma", "instructions_per_mma", "<=", 12.5),
    Bound("prompt_rows<1, 4", ALL, "K", "ffma_share", ">=", 0.48),
    Bound("prompt_rows<1, 4", ALL, "V", "ffma_share", ">=", 0.28),
    Bound("head_row", ALL, "logits", "loads_in_flight", ">=", 16),
    Bound("norm_row", ALL, "row", "loads_in_flight", ">=", 16),
)


# ---- counting

ENTRY = re.compile(r"Compiling entry function '(\S+)' for")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def nvdisasm():
    """The disassembler: on PATH, beside nvcc, or where pip puts it; None."""
    places = [sysconfig.get_path("purelib") + "/nvidia/*/bin/nvdisasm", "/usr/local/cuda/bin/nvdisasm"]
    return shutil.which("nvdisasm") or next((p for x in places for p in sorted(glob.glob(x))), None)


def used_by(said):
    """What ptxas -v says of each kernel: {mangled name: (registers, spill bytes, stack bytes, static shared bytes)}."""
    out, name, frame = {}, None, (0, 0, 0)
    for line in said.splitlines():
        if found := ENTRY.search(line):
            name = found[1]
        elif found := SPILLS.search(line):
            frame = tuple(int(x) for x in found.groups())
        elif (found := USED.search(line)) and name:
            out[name], name = (int(found[1]), frame[1] + frame[2], frame[0], int(found[2] or 0)), None
    return out


def plain_names(mangled):
    """{mangled: name with template arguments}."""
    said = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout.replace("(int)", "")
    return {m: re.match(r"(?:void )?([\w:]+(?:<[^()]*>)?)", p)[1] for m, p in zip(mangled, said.splitlines())}


def blocks_per_sm(arch, registers, threads, shared):
    """Blocks that an SM holds at a time."""
    sm, warps = SMS[arch], -(-threads // 32)
    warp_registers = -(-registers * 32 // 256) * 256
    room = -(-(shared + sm.block_shared) // sm.unit) * sm.unit
    return min(sm.blocks, sm.threads // (warps * 32), (16384 // warp_registers) * 4 // warps,
               sm.shared // room if room else sm.blocks)


def loop_counts(loop, share, arch, threads, blocks, shared):
    """The columns of a loop."""
    mma = sum(x.is_mma for x in loop.code)
    widths = collections.Counter(x.bytes for x in loop.code if x.is_load or x.to_shared)
    waits = [int(x.rest.split(",")[1], 0) for x in loop.own if x.op == "DEPBAR.LE" and any(y.to_shared for y in loop.code)]
    loads, load_bytes = loop.loads, loop.load_bytes
    if waits:  # a ring of stages: one is multiplied, those that the loop does not wait for and one more are on their way
        unrolled = all(x in loop.own for x in loop.code if x.to_shared)  # else shared memory says how long a stage is
        stage = sum(x.bytes for x in loop.own if x.to_shared) if unrolled else shared // (waits[0] + 2) // threads
        load_bytes = stage * (waits[0] + 1)
        loads = load_bytes // 16
    row = {"instructions": len(loop.code), "mma": mma, "instructions_per_mma": round(len(loop.code) / mma, 2) if mma else "",
           "ffma_share": round(sum(x.name == "FFMA" for x in loop.code) / len(loop.code), 3),
           "load_bytes": max(widths, key=lambda w: (widths[w], -w)) if widths else "", "byte_loads": widths[1],
           "loads_in_flight": loads}
    if share is not None and blocks:
        card = CARDS[arch]
        have, need = round(load_bytes * share * threads * blocks), round(card.bytes_s * card.latency_s / card.sms)
        row.update(bytes_in_flight_per_sm=have, needed_bytes_per_sm=need, in_flight_ratio=round(have / need, 2))
    return row


def rows_of(source, arch, command, disassembler):
    """The rows of a file's kernels on an architecture."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = os.path.join(folder, "x.cubin")
        done = subprocess.run([*command, "-Xptxas", "-v", "-cubin", f"-arch=sm_{arch}", "-o", cubin, source], cwd=ROOT,
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{source}, sm_{arch}: {done.stderr[-800:]}")
        used = used_by(done.stderr)
        text = subprocess.run([disassembler, "-gi", cubin], capture_output=True, text=True, check=True).stdout
    names, threads_of, rows = plain_names(list(used)), sass_read.threads(text), []
    for f in sass_read.functions(text):
        if f.mangled not in used:
            continue
        registers, spill, stack, shared = used[f.mangled]
        name, threads = names[f.mangled], threads_of.get(f.mangled, 0)
        base, numbers = name.split("<")[0], [int(x) for x in re.findall(r"-?\d+", name.partition("<")[2])]
        kernel = next((k for k in KERNELS if k.name == base), None)
        shared += kernel.shared(arch, *numbers) if kernel else 0
        blocks = blocks_per_sm(arch, registers, threads, shared) if threads else ""
        row = dict(zip(COLUMNS, ("", name, os.path.basename(source), f"sm_{arch}", registers, spill, stack, shared, threads, blocks)))
        loops, hot = f.loops() if kernel else [], []
        for x in kernel.loops if kernel else ():
            loop = sass_read.hottest(loops, x.path, x.rare)
            counts = loop_counts(loop, x.share(*numbers), arch, threads, blocks, shared) if loop else {"mma": 0}
            hot += [{**row, "loop": x.name, **counts}] if loop and (counts["mma"] or x.name != "mma") else []
        rows += hot or [{**row, "loop": ""}]
    return rows


# ---- the verdict

def broken(rows, archs):
    """Lines about bounds that do not hold, and loops of KERNELS that no kernel has."""
    for kernel in KERNELS:
        for loop, arch in ((x.name, a) for x in kernel.loops for a in archs if a in kernel.archs):
            if not any(r["kernel"].split("<")[0] == kernel.name and r["loop"] == loop and r["arch"] == f"sm_{arch}" for r in rows):
                yield f"{kernel.name} on sm_{arch}: no loop is called {loop}: KERNELS names functions that are not there"
    for b in BOUNDS:
        held = [r for r in rows if re.match(b.kernel, r["kernel"]) and int(r["arch"][3:]) in b.archs and b.loop in ("", r["loop"])]
        held = [r for r in held if r.get(b.column, "") != ""]
        for r in held:
            if r[b.column] > b.limit if b.relation == "<=" else r[b.column] < b.limit:
                yield f"{r['kernel']} on {r['arch']}, loop {r['loop'] or '-'}: {b.column} {r[b.column]}, must be {b.relation} {b.limit}"
        if not held and set(b.archs) & set(archs):
            yield f"no row has the bound {b.kernel} {b.loop} {b.column}"


def commit():
    """The last commit of the kernels; with -dirty where they differ from it."""
    def git(*words):
        return subprocess.run(["git", *words, "--", "kernels/cuda"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return (git("log", "-1", "--format=%h", "--abbrev=12") or "unknown") + ("-dirty" if git("status", "--porcelain") else "")


def write(path, rows):
    """Into the CSV: after the rows of its first commit, in place of the others."""
    first = []
    if os.path.exists(path):
        with open(path, encoding="utf-8", newline="") as f:
            first = list(csv.DictReader(f))
    now = commit()
    first = [r for r in first if r["commit"] == first[0]["commit"] != now]
    with open(path, "w", encoding="utf-8", newline="") as f:
        w = csv.DictWriter(f, COLUMNS, restval="", lineterminator="\n")
        w.writeheader()
        w.writerows([*first, *({**r, "commit": now} for r in rows)])


def main():
    at = sys.argv.index("--")
    options, archs = sys.argv[1:at], [int(a) for a in sys.argv[at + 1:]]
    check = options[0] == "--check"
    path, command = (None, options[1:]) if check else (options[1], options[2:])
    command = [*(x for x in command if x not in ("-MMD", "-MP")), "-lineinfo"]  # loops are found by the functions around them
    disassembler = nvdisasm()
    if not disassembler:
        with open(os.path.join(ROOT, "tests/requirements.txt"), encoding="utf-8") as f:
            pin = re.search(r"^nvidia-cuda-nvdisasm==[\d.]+", f.read(), re.M)[0]
        sys.exit(f"sass: no nvdisasm (python3 -m pip install {pin})")
    sources = sorted(os.path.relpath(p, ROOT) for p in glob.glob(os.path.join(ROOT, "kernels/cuda/*.cu")))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda job: rows_of(*job, command, disassembler), [(s, a) for s in sources for a in archs])
        rows = [r for part in found for r in part]
    if path:
        write(path, rows)
    bad = list(broken(rows, archs))
    print("".join(f"FAILED {line}\n" for line in bad), end="")
    print(f"{len({(r['kernel'], r['arch']) for r in rows})} kernels, {len(BOUNDS)} bounds, {len(bad)} broken{': ' + path if path else ''}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
