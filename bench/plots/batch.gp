# Output tokens/s against the batch, beside the roof of each run: -e "csv='bench/results/batch-CPU.csv'" (bench/run.py batch).
load system("dirname '".ARG0."'")."/style.gp"
FILE = csv

array WEIGHTS[4] = ["resident", "streamed", "resident", "streamed"]
array COMPUTE[4] = ["bf16", "bf16", "int8", "int8"]
array NAME[4] = ["weights in RAM", "weights on disk", "in RAM, int8", "on disk, int8"]
array COLOR[4] = [GREEN, BLUE, PINK, SKY]
array POINT[4] = [5, 7, 9, 11]
mine(i) = (strcol("weights") eq WEIGHTS[i] && strcol("compute") eq COMPUTE[i])
rate(i, what) = (mine(i) ? column(what) : NaN)

array LAST[4]
do for [i=1:4] {
    stats FILE using (mine(i) ? column("batch") : 0) nooutput
    LAST[i] = STATS_max
}
stats FILE using "batch" nooutput
TOP = STATS_max
MODEL = system("sed -n 's/^resident,bf16,[^,]*,\\([^,]*\\),.*/\\1/p' '".FILE."' | head -n 1")
DUMMY = system("grep -c '^resident,bf16,[^,]*,[^,]*,True' '".FILE."'") + 0 > 0 ? " (dummy weights)" : ""
set label 10 heading("Output tokens/s against the batch", \
    plain(MODEL).DUMMY."; ".plain(head(FILE, "machine"))) at graph 0, 1 left offset 0, 2.2 textcolor rgb INK
set xlabel "rows of the batch"
set ylabel "output tokens/s, prompts included"
set logscale x 2
set logscale y 10
set xrange [0.85:TOP * 3.2]
set xtics add ("1" 1, "2" 2, "4" 4, "8" 8, "16" 16, "32" 32, "64" 64, "128" 128, "256" 256)
stats FILE using "tok_s" nooutput
set yrange [STATS_min / 2.5:*]
set ytics @ROUND
set key bottom right Left reverse samplen 3 textcolor rgb INK
plot for [i=1:4] FILE using "batch":(rate(i, "roof_tok_s")) with lines lw 1.4 dt (6, 4) lc rgb COLOR[i] notitle, \
     for [i=1:4] FILE using "batch":(rate(i, "tok_s")) with linespoints lw 2.2 pt POINT[i] ps 0.9 lc rgb COLOR[i] notitle, \
     for [i=1:4] FILE using (column("batch") == LAST[i] && mine(i) ? LAST[i] : NaN):"tok_s":(NAME[i]) \
         with labels left offset 0.9,0 textcolor rgb COLOR[i] notitle, \
     NaN with lines lw 2.2 lc rgb SOFT title "measured", \
     NaN with lines lw 1.4 dt (6, 4) lc rgb SOFT title "what disk, RAM and matmuls allow"
