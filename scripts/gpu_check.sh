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

stage() { # name, minutes, GB that it needs, command
    local name=$1 minutes=$2 memory=$3 log=$OUT/$1/log.txt verdict=passed
    shift 3
    [[ -z $STAGES || " $STAGES " == *" $name "* ]] || return 0
    mkdir -p "$OUT/$name"
    echo "$name: at most $minutes minutes"
    if ((memory > GB)); then
        verdict="skipped: needs $memory GB on the card, this one has $GB"
    elif ! timeout -k 10 "${minutes}m" "$@" >>"$log" 2>&1 </dev/null; then
        verdict="failed or stopped after $minutes minutes: $(tail -n 1 "$log") ($log)" STATUS=1
    elif [[ $name == tests ]] && ! grep -q '[1-9][0-9]* passed' "$log"; then # pytest ends well where all are skipped
        verdict="failed: no test ran ($log)" STATUS=1
    fi
    echo "$name: $verdict" | tee "$OUT/$name/verdict.txt"
}

bench=("$PYTHON" -m bench run backend=cuda_graph)
# Names each test as it ends. The project's own options need more plug-ins than a bare machine has. Of five decoders
# three are compiled, as all take too long; without peers and memory limits.
tests=("$PYTHON" -m pytest -v -rfE --tb=short --continue-on-collection-errors)
tests+=(-o addopts= -o timeout=120 -o session_timeout=420)

stage costs 8 0 "${bench[@]}" study=gpu_costs run_dir="$OUT/costs/run"
stage costs_7b 8 30 "${bench[@]}" study=gpu_costs model=anole_7b_random run_dir="$OUT/costs_7b/run"
stage tests 8 0 "${tests[@]}" -k "not (medusa or free or libraries or static_cache or fit)" tests/gpu
stage main 30 0 "${bench[@]}" study=main run_dir="$OUT/main/run"
echo "send all of $OUT: tar czf gpu_check.tgz $OUT"
exit $STATUS
