"""Faults of the SIMT shim and the PTX interpreter of tests/simt: of what tests, not of the product. See mutant_list.py."""
from mutant_fault import fault

fault("simt: shuffles order memory", "tests/simt/simt.c",
      "        shuffle(warp, t->mask);", "        shuffle(warp, t->mask), syncwarp(warp, t->mask);", "simt_shim_test")
fault("simt: a copy has landed when it begins", "tests/simt/simt.c",
      "if (simt_now.arch < 80) //", "if (simt_now.arch) //", "simt_shim_test")
fault("simt: blocks come after each other", "tests/simt/shadow.c",
      "    if (w->serial != simt_now.serial)\n        return in_shared;", "    if (w->serial != simt_now.serial)\n        return 1;",
      "simt_shim_test")
fault("simt: a product of bf16 keeps a bit more", "tests/simt/mma.c",
      "arch >= 90 ? 25 : 24;", "25;", "simt_shim_test")
fault("simt: the right operand of bytes is half of it", "tests/simt/simt.c",
      ".b[i / 16];", ".b[0];", "simt_shim_test")
# ---- PTX, interpreted
PTX, PTX_NUMBERS = "simt_ptx_test", "tests/simt/ptx_numbers.c"
fault("ptx: a NaN is the CPU's", PTX_NUMBERS, "return f != f ? 0x7fffffff : u;", "return u;", PTX)
fault("ptx: shifts are taken modulo 32", PTX_NUMBERS,
      '"shl.b32", 3, u32, u32, BY > 31 ? 0 : a << BY)', '"shl.b32", 3, u32, u32, a << (BY & 31))', PTX)
fault("ptx: a comparison for unequal is true of a NaN", PTX_NUMBERS,
      '"setp.ne.f32", 3, f32, pred, a < b || a > b)', '"setp.ne.f32", 3, f32, pred, a != b)', PTX)
fault("ptx: a guard counts as it stands", "tests/simt/ptx.c",
      "r[i->guard] == (uint64_t)i->unless", "r[i->guard] == 0", PTX)
fault("ptx: parameters may be others", "tests/simt/ptx.c", "if (k->param_bytes != param_bytes)", "if (0)", PTX)
fault("ptx: a signed load spreads no sign", "tests/simt/ptx_memory.c",
      "up = 64 - 8 * i->bytes;", "up = 0 * i->bytes;", PTX)
fault("ptx: a kernel does not end with a trap", "tests/simt/ptx_read.c",
      ' && strcmp(last, "trap") != 0', "", PTX)
fault("ptx: locals have no end", "tests/simt/ptx_memory.c", "limit = i->kernel->local_bytes;", "limit = INT64_MAX;", PTX)
fault("ptx: tables have no end", "tests/simt/ptx_memory.c", "p + bytes <= f->tables[i].at + f->tables[i].bytes",
      "f->tables[i].bytes > 0", PTX)
fault("ptx: bytes that are not used may be of any load", "tests/simt/ptx_read.c",
      "if (r->used_bytes && i->space != SLOT_PARAM)", "if (0)", PTX)

# ---- where a tile's tokens go
fault("pairs of an expert stand backwards in a warp", "kernels/cuda/experts.cu:alike_of", "n.before += same && lane < lane_id();",
      "n.before += same && lane > lane_id();", "simt_experts_test")
fault("pairs of a warp are counted once", "kernels/cuda/experts.cu", "            mine[e] += n.all;\n        __syncwarp();\n    }\n    __syncthreads();\n",
      "            mine[e] += 1;\n        __syncwarp();\n    }\n    __syncthreads();\n", "simt_experts_test")
fault("warps do not come behind each other", "kernels/cuda/experts.cu:route_count", "            sum += n;\n", "            sum = n;\n",
      "simt_experts_test")
fault("the next pairs of a warp come over these", "kernels/cuda/experts.cu", "            r.places[i] = place;\n        }\n        __syncwarp();\n        if (e >= 0 && n.before == 0)",
      "            r.places[i] = place;\n        }\n        __syncwarp();\n        if (0)", "simt_experts_test")
