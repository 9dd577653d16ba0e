#!/bin/sh
# The figure of the planner: how far predicted job times are from taken ones (median and 90th percentile of
# |predicted / taken - 1|, the worst with its cause). Goes on where it was stopped; the flags are predict.py's.
exec "$(dirname "$0")/predict.py" "$@"
