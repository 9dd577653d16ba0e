# Output tokens/s against the memory budget, a line per engine: -e "csv='bench/results/budget-CPU.csv'" (bench/run.py budget).
load system("dirname '".ARG0."'")."/style.gp"
FILE = csv

array NAME[4] = ["sluice", 'llama.cpp Q4\\_1', 'llama.cpp Q4\\_0', "sluice q8, int8"]
array COLOR[4] = [BLUE, RED, ORANGE, SKY]
array POINT[4] = [7, 5, 9, 11]
key(e, f) = (e eq "sluice" ? (f eq "q8" ? 4 : 1) : f eq "q4_1" ? 2 : 3)
mine(i) = (key(strcol("engine"), strcol("format")) == i && strcol("status") eq "ok")
rate(i) = (mine(i) ? column("tok_s") : NaN)

array LAST[4]
do for [i=1:4] {
    LAST[i] = 0
    stats FILE using (mine(i) ? column("budget_mib") : 0) nooutput
    LAST[i] = STATS_max
}
set label 10 heading("Output tokens/s under a memory budget", \
    "SmolLM2-135M-Instruct (98 MB in Q4\\_1), 64 chat prompts, 64 new tokens each; ".plain(head(FILE, "machine"))) at graph 0, 1 left offset 0, 2.2 textcolor rgb INK
set xlabel "memory of the control group, MiB"
set ylabel "output tokens/s, prompts included"
set logscale xy
set xrange [56:1100]
stats FILE using "tok_s" nooutput
set yrange [STATS_min / 1.6:STATS_max * 1.6]
set ytics @ROUND
set xtics (64, 96, 128, 192, 256, 400, 640)
unset key
plot for [i=1:4] FILE using "budget_mib":(rate(i)) with linespoints lw 2.2 pt POINT[i] ps 0.9 lc rgb COLOR[i], \
     for [i=1:4] FILE using (column("budget_mib") == LAST[i] && mine(i) ? LAST[i] : NaN):"tok_s":(NAME[i]) \
         with labels left offset 0.9,0 textcolor rgb COLOR[i]
