# What the plots share: terminal, colours (Okabe and Ito's, told apart by the colour-blind too), grid.
# gnuplot X.gp writes SVG to stdout; gnuplot -e png=1 X.gp a PNG, to look at.
ROOT = system("cd \"$(dirname '".ARG0."')/..\" && pwd")
if (exists("png")) {
    set terminal pngcairo size 1520,960 font "DejaVu Sans,13" fontscale 2 pointscale 2 \
        linewidth 2 background rgb "white"
} else {
    set terminal svg size 760,480 enhanced background rgb "white" \
        font "Helvetica,Arial,DejaVu Sans,sans-serif,13"
}
set encoding utf8
set datafile separator ","
set datafile columnheaders
set datafile missing ""

INK = "#333333"; PALE = "#dddddd"; SOFT = "#777777"
BLUE = "#0072B2"; RED = "#D55E00"; ORANGE = "#E69F00"; GREEN = "#009E73"; PINK = "#CC79A7"; SKY = "#56B4E9"

set border 3 lc rgb SOFT lw 1
set tics nomirror out scale 0.6 textcolor rgb INK
set grid xtics ytics lc rgb PALE lw 0.8 dt 1
set xlabel textcolor rgb INK
set ylabel textcolor rgb INK
set lmargin 10
set rmargin 3
set tmargin 3.6
set bmargin 3.8

# Steps on a logarithmic y axis: set ytics @ROUND.
set macros
ROUND = '(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)'
# One value of a CSV's head: `# key: value`.
head(file, key) = system(sprintf("sed -n 's/^# %s: //p' '%s'", key, file))
# Above the plot, from its left edge: what it shows, and below it, small, on what.
heading(title, small) = sprintf("{/:Bold*1.1 %s}\n{/*0.85 %s}", title, small)
plain(text) = system("printf '%s' \"".text."\" | tr '_' '-'")
