# What KV policies cost against the budget: perplexity at the longest length, and log-probabilities of hidden numbers:
# -e "csv='bench/results/evaluate-CPU.csv'" (bench/evaluate.py). Of several formats of KV the first is drawn.
load system("dirname '".ARG0."'")."/style.gp"
FILE = csv

rows(what) = system("grep -v '^#' '".FILE."' | tail -n +2 | ".what)
POLICIES = rows("cut -d, -f2 | awk '!seen[$0]++' | grep -v '^full$'")
FORMAT = rows("head -n 1 | cut -d, -f4")
LONGEST = rows("grep '^ppl,' | cut -d, -f5 | sort -n | tail -n 1")
array COLOR[6] = [BLUE, RED, GREEN, ORANGE, PINK, SKY]
array POINT[6] = [7, 5, 9, 11, 13, 4]
array TASK[2] = ["ppl", "passkey"]
array FIGURE[2] = ["ppl", "logprob"]
array TITLE[2] = ["perplexity, windows of ".LONGEST." tokens", "log p of a token of a hidden number"]
# The lines of one task and policy, with the CSV's own head: a point that is not there would break a line.
series(k, policy) = "< grep '^task,' '".FILE."'; grep '^".TASK[k].",".policy.",[^,]*,".FORMAT."," . \
                    (k == 1 ? LONGEST."," : "")."' '".FILE."'"

BUDGETS = rows("cut -d, -f3 | grep . | sort -gu")
LOW = real(word(BUDGETS, 1)); HIGH = real(word(BUDGETS, words(BUDGETS)))
EDGE = words(BUDGETS) > 1 ? 0.1 * (HIGH - LOW) : 0.5 * LOW
set xrange [LOW - EDGE:HIGH + EDGE]
set xtics ()
set for [b in BUDGETS] xtics add (b real(b))
set xlabel "KV budget"
set label 10 heading("What KV policies cost in answers", \
    plain(head(FILE, "model")).", KV ".FORMAT."; dashed: full KV") at screen 0.075, 0.955 left textcolor rgb INK
set tmargin at screen 0.82
set offsets graph 0, 0, 0.2, 0.02
set multiplot layout 1,2
do for [k=1:2] {
    set ylabel TITLE[k] offset 1, 0
    if (k == 1) {
        set key top right samplen 2 textcolor rgb INK
    } else {
        unset label 10
        unset key
        unset offsets
        set yrange [*:0]
    }
    stats series(k, "full") using FIGURE[k] nooutput
    FULL = STATS_mean
    plot FULL with lines lw 1.4 dt (6, 4) lc rgb SOFT notitle, \
         for [i=1:words(POLICIES)] series(k, word(POLICIES, i)) using "budget":FIGURE[k] smooth unique with linespoints lw 2.2 \
             pt POINT[(i - 1) % 6 + 1] ps 0.8 lc rgb COLOR[(i - 1) % 6 + 1] title word(POLICIES, i)
}
unset multiplot
