#!/bin/sh
# `make demo`: 8 questions for a real model in less memory than its weights take. demo.sh SLUICE
set -eu
sluice=$1
read -r model <build/demo/model
rm -f build/demo/out.jsonl* build/demo/summary.json
set -- run --config configs/smollm2-64m.cfg -m "$model" -i tests/data/prompts.jsonl \
    -o build/demo/out.jsonl --summary build/demo/summary.json
echo "$sluice $*"
touch build/demo/run
"$sluice" "$@"
python3 tests/demo_show.py build/demo/out.jsonl tests/data/prompts.jsonl build/demo/summary.json "$sluice"
