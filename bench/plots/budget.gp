# Output tokens/s against the memory budget, a line per engine: bench/results/budget.csv (bench/run_budget.py).
load system("dirname '".ARG0."'")."/style.gp"
FILE = ROOT."/results/budget.csv"

array NAME[3] = ["sluice", 'llama.cpp Q4\\_1', 'llama.cpp Q4\\_0']
array COLOR[3] = [BLUE, RED, ORANGE]
array POINT[3] = [7, 5, 9]
key(e, f) = (e eq "sluice" ? 1 : f eq "q4_1" ? 2 : 3)
mine(i) = (key(strcol("engine"), strcol("format")) == i && strcol("status") eq "ok")
rate(i) = (mine(i) ? column("tok_s") : NaN)

array LAST[3]
do for [i=1:3] {
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
plot for [i=1:3] FILE using "budget_mib":(rate(i)) with linespoints lw 2.2 pt POINT[i] ps 0.9 lc rgb COLOR[i], \
     for [i=1:3] FILE using (column("budget_mib") == LAST[i] && mine(i) ? LAST[i] : NaN):"tok_s":(NAME[i]) \
         with labels left offset 0.9,0 textcolor rgb COLOR[i]
