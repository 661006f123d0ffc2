"""A synthetic decoder in a run: timed, without pictures, and called so."""

from bench.__main__ import main
from bench.analyse.analyse import load
from tests.bench.fakes import SEARCHPATH

ENTRY = (
    '{decoder: sd_chain, name: paper, overrides: ["acceptance=synthetic", "acceptance.mal=1.5"]}'
)


def test_the_table_says_so_without_a_gate_too(tmp_path, capsys, without_plots):
    words = [
        "run", SEARCHPATH, "study=quick", "model=random24", f"run_dir={tmp_path}", "gate=false",
        "metric=none", "backend=cpu_torch", "backend.threads=1",
        f"decoders=[ar,{ENTRY}]", "latency.prompts=2", "latency.blocks=1", "latency.busy=1",
        "latency.warmup_max=1", "quality.images=2", "quality.reseeds=0", "prompts=fake",
    ]  # fmt: skip
    assert main(words) == 0
    run = load(tmp_path)
    (paper,) = (entry for entry in run.entries if entry.name == "paper")
    assert paper.word == "synthetic"
    rows = run.rows[run.rows.decoder == "paper"]
    assert set(rows.protocol) == {"latency"} and not rows.image.any()
    shown = capsys.readouterr().out
    assert "Fastest decoder without a verdict: paper" in shown or "No decoder without" in shown
