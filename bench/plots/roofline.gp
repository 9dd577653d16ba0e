# GFLOP/s of the ops against FLOPs per byte, under the roofs of the same run: -e "csv='bench/results/ops-CPU.csv'"
# (bench/run.py ops). Ops that only move bytes (decode, kv_store, head_reduce, prompt_keep) have no place here.
load system("dirname '".ARG0."'")."/style.gp"
FILE = csv

PEAK = real(head(FILE, "roof_gflop_s"))
RAM = real(head(FILE, "roof_ram_gb_s"))
has(word) = (strstrt(strcol("shape"), word) > 0)
is(op) = (strcol("op") eq op)
kind(none) = is("attend_prompt") ? 5 : is("attend_forced") ? (has("q8") || has("q4") || has("mixed") ? 7 : 6) : \
         is("norm") || is("rope") || is("gate_mul") || is("silu_mul") || is("mix") ? 8 : !is("matmul") ? 0 : has("int8") ? 4 : has("bf16") ? 1 : \
         has("bf12") ? 2 : 3
array NAME[8] = ["matmul bf16", "matmul bf12", "matmul q8, q4, ...", "matmul int8 (q8, q4)", "attend prompt", \
                 "attend KV bf16, f32", "attend KV q8, q4, mixed", "norm, rope, gate\\_mul"]
array COLOR[8] = [BLUE, SKY, GREEN, PINK, RED, ORANGE, ORANGE, SOFT]
array POINT[8] = [7, 7, 5, 9, 13, 11, 10, 2]
intensity(i) = (kind(0) == i && column("gb_s") > 0 ? column("gflop_s") / column("gb_s") : NaN)

set label 10 heading("The ops under the roofs of the machine", \
    plain(head(FILE, "machine"))."; ".plain(head(FILE, "command"))) at graph 0, 1 left offset 0, 2.2 textcolor rgb INK
set xlabel "FLOPs per byte"
set ylabel "GFLOP/s"
set logscale xy
set xrange [0.2:1500]
set yrange [5:PEAK * 4]
set format x "%g"
set format y "%g"
set key bottom right Left reverse samplen 1 spacing 0.95 font ",12" textcolor rgb INK box lc rgb PALE opaque width -3 height 0.4
roof(x, peak) = (x * RAM < peak ? x * RAM : peak)
set samples 600
set label 1 sprintf("bf16: %.0f GFLOP/s", PEAK) at 0.22, PEAK * 1.14 left textcolor rgb INK
set label 2 "int8: twice that" at 0.22, PEAK * 2.28 left textcolor rgb SOFT
set label 3 sprintf("RAM: %.0f GB/s", RAM) at 0.28, RAM * 0.37 left rotate by 39 textcolor rgb INK
plot (x * RAM > PEAK ? roof(x, 2 * PEAK) : NaN) with lines lw 1.4 dt (6, 4) lc rgb SOFT notitle, \
     2 * PEAK with lines lw 0.6 dt (2, 4) lc rgb SOFT notitle, PEAK with lines lw 0.6 dt (2, 4) lc rgb SOFT notitle, \
     roof(x, PEAK) with lines lw 2 lc rgb INK notitle, \
     for [i=1:8] FILE using (intensity(i)):"gflop_s" with points pt POINT[i] ps 0.7 lw 1.2 lc rgb COLOR[i] title NAME[i]
