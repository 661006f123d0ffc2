#!/usr/bin/env bash
# The first hour on a GPU, in stages (docs/gpu.md). A stage is a process that is stopped after its minutes, with a
# verdict, a log and a run of its own: one that fails stops no other, and the same command goes on with what is there.
# usage: scripts/gpu_check.sh [OUT [STAGE...]], with PYTHON in the environment
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3} OUT=${1:-results/gpu_check} STAGES=${*:2} STATUS=0

GB=$("$PYTHON" -c '
import sys
import torch
if torch.version.hip or not torch.cuda.device_count():
    sys.exit(f"torch {torch.__version__} sees no card; does nvidia-smi list one?")
card = torch.cuda.get_device_properties(0)
if card.major < 8:
    sys.exit(f"{card.name} with {card.major}.{card.minor}")
print(round(card.total_memory / 1e9))') || {
    echo "error: gpu_check needs an NVIDIA card of compute capability 8.0 (Ampere) or newer with 8 GB, see above" >&2
    exit 1
}
mkdir -p "$OUT" && { nvidia-smi || true; git log -1 --format='commit %H'; } >"$OUT/machine.txt" 2>&1

stage() { # group, name, minutes, GB that it needs, command
    local group=$1 name=$2 minutes=$3 memory=$4 log=$OUT/$2/log.txt verdict=passed took=
    shift 4
    [[ -z $STAGES || " $STAGES " == *" $group "* || " $STAGES " == *" $name "* ]] || return 0
    mkdir -p "$OUT/$name"
    echo "$name: at most $minutes minutes"
    if ((memory > GB)); then
        verdict="skipped: needs $memory GB on the card, this one has $GB"
    elif ! timeout -k 10 "${minutes}m" "$@" >>"$log" 2>&1 </dev/null; then
        verdict="failed or stopped after $minutes minutes: $(tail -n 1 "$log") ($log)" STATUS=1
    elif [[ -e $OUT/$name/run/records.parquet ]] && ! took=$(steps "$OUT/$name/run" 2>&1); then
        verdict="failed: $took" STATUS=1
    elif [[ $name == tests ]] && ! grep -q '[1-9][0-9]* passed' "$log"; then # pytest ends well where all are skipped
        verdict="failed: no test ran ($log)" STATUS=1
    fi
    echo "$name: $verdict${took:+; $took}" | tee "$OUT/$name/verdict.txt"
}

bench=("$PYTHON" -m bench run backend=cuda_graph)

# What the steps of a run took; status 1 where a timed one ran eagerly, as without Python's headers (python3-dev).
steps() {
    "$PYTHON" -c '
import sys
import pandas
rows = pandas.read_parquet(sys.argv[1] + "/records.parquet")
timed = rows[(rows.protocol == "latency") & (rows.status == "ok")]
if slow := sorted({path for path in timed.path if "=eager" in path}):
    sys.exit(f"steps ran eagerly: {slow[0]}; see the warnings in the log")
for line in pandas.read_csv(sys.argv[1] + "/roofline.csv").itertuples():
    image = timed[timed.decoder == line.decoder].seconds_total.mean()
    print(f"{line.decoder}: step {line.step_ms:.2f} ms, {line.step_over_floor:.1f} floors, {image:.3f} s/image", end="; ")
' "$1"
}

# One process a decoder, so that each leaves its figures however long the next one compiles.
costs() { # group, minutes, GB that each needs, decoders, words of the study
    local group=$1 decoder
    for decoder in $4; do
        stage "$group" "${group}_$decoder" "$2" "$3" \
            "${bench[@]}" study=gpu_costs "decoders=[$decoder]" "${@:5}" run_dir="$OUT/${group}_$decoder/run"
    done
}

# Names each test as it ends. The project's own options need more plug-ins than a bare machine has.
tests=("$PYTHON" -m pytest -v -rfE --tb=short --continue-on-collection-errors)
tests+=(-o addopts= -o timeout=120 -o session_timeout=420)

costs costs 3 0 "ar sjd sd_chain paper_2.10 paper_2.67 lantern_pp_25 lantern_pp"
stage tests tests 8 0 "${tests[@]}" tests/gpu
stage main main 18 0 "${bench[@]}" study=main run_dir="$OUT/main/run"
costs costs_7b 4 30 "ar paper_2.67 lantern_pp" model=anole_7b_random
echo "send all of $OUT: tar czf gpu_check.tgz $OUT"
exit $STATUS
