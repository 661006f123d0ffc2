"""By hand: runs beside busy loops give the figures of a quiet run or none; quiet runs no alarm.

    python tests/busy_machine.py quiet DIR [words of a study]   three runs: none may be disturbed
    python tests/busy_machine.py busy DIR [words of a study]    three runs beside two busy loops for
                                                                half of their time

`busy` compares with the runs of `quiet` in the same DIR where they are there: a speed-up must lie
within the intervals of a quiet run, or be missing. Not a test of the suite: a quiet machine is not
to be had on demand. Exit status 1 where it fails.
"""

import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

TRIES, LOOPS, SPELL = 3, 2, 10.0  # runs; neighbours; seconds that they spin and rest in turns
WORDS = ["study=main", "quality.images=0", "gate=false", "report=false"]


def run(folder: Path, words: list[str], busy: bool) -> pd.DataFrame:
    """A run's summary by decoder, with the share of its timings that were disturbed."""
    command = [sys.executable, "-m", "bench", "run", *WORDS, *words, f"run_dir={folder}"]
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            spin = [sys.executable, "-c", "while True: pass"]
            loops = [subprocess.Popen(spin) for _ in range(LOOPS * busy)]
            time.sleep(SPELL)
            for loop in loops:
                loop.kill()
                loop.wait()
            time.sleep(SPELL * busy)
    if process.returncode:
        sys.exit(f"the run ended with {process.returncode}")
    rows = pd.read_parquet(folder / "records.parquet")
    timed = rows[rows.protocol == "latency"]
    summary = pd.read_csv(folder / "summary.csv").set_index("decoder")
    return summary.assign(disturbed=timed.groupby("decoder").disturbed.mean())


def main(kind: str, place: str, *words: str) -> int:
    wrong = []
    for number in range(TRIES):
        folder = Path(place) / f"{kind}{number}"
        found = run(folder, list(words), kind == "busy")
        print(found[["speedup", "speedup_lo", "speedup_hi", "disturbed"]].round(3).to_string())
        if kind == "quiet" and found.disturbed.any():
            wrong.append(f"{folder}: a false alarm")
        quiet = Path(place) / "quiet0" / "summary.csv"
        if kind == "busy" and quiet.is_file():
            there = pd.read_csv(quiet).set_index("decoder")
            both = there.join(found.speedup.dropna().rename("busy"), how="inner")
            out = both[(both.busy < both.speedup_lo) | (both.busy > both.speedup_hi)]
            wrong += [f"{folder}: {name} {one.busy:.3f}" for name, one in out.iterrows()]
    print("\n".join(wrong) or "as it should be")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
