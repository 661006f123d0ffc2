"""`bench methods`: the table of all methods, and the committed one."""

from pathlib import Path

import pytest

from bench.__main__ import main
from bench.compare import methods
from bench.compare.published import PublishedError, load
from bench.config.catalogue import groups
from bench.config.schema import PublishedConfig, build
from bench.data.errors import ConfigError
from tests.bench.compare.files import a_run

MADE = Path(__file__).resolve().parents[3] / "results" / "published" / "methods.md"
AR = {"study": "s", "decoder": "ar", "acceptance": "none", "speedup": 1.0, "mal": 1.0}
LANTERN = {"study": "s", "decoder": "lantern", "acceptance": "lantern(k=10)", "mal": 2.5}
SPEED = {"speedup": 0.48, "speedup_lo": 0.46, "speedup_hi": 0.52, "status": "ok"}
SETTINGS = {
    "model": "tiny", "tree": "none", "device": "cpu", "status": "ok", "temperature": 1.0,
    "cfg": 3.0, "n_latency": 2, "n_quality": 0, "latency_mean_s": 1.0,
}  # fmt: skip


def test_a_damaged_file_of_claims_is_refused(tmp_path):
    file = tmp_path / "claims.csv"
    file.write_text("paper,arxiv,method,claim,here,reason\nA,1,B,exact,,because\n")
    with pytest.raises(PublishedError, match="none of them empty"):
        methods.claims(load(), file)


def test_every_decoder_is_in_the_table():
    listed = {name for decoder, one in methods.methods() for name in (decoder, *one.variants)}
    others = {"replayed", "replayed_chain"}
    ours = {name for name in groups()["decoder"] if not name.startswith("hf_")}
    assert listed | others == ours


def test_ours_come_from_the_runs_that_are_named(tmp_path, capsys):
    a_run(tmp_path / "run", SETTINGS | AR, SETTINGS | LANTERN | SPEED, study=None)
    out = tmp_path / "table.md"
    assert main(["methods", str(tmp_path / "run"), f"out={out}"]) == 0
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("| LANTERN ([")]
    assert line.endswith("| `lantern` 0.48 [0.46, 0.52]x, 2.50 codes |")
    assert "LlamaGen-XL stage I 1.45x to 1.69x (LANTERN, VVS)" in line
    assert out.read_text() == shown


def test_what_it_cannot_read_is_said(tmp_path, capsys):
    assert main(["methods", str(tmp_path / "nowhere")]) == 2
    assert "there is no" in capsys.readouterr().err


def test_a_wrong_entry_of_a_decoder_is_refused():
    entry = {"method": "x", "exact_to": "AR", "param": {}}
    with pytest.raises(ConfigError, match="did you mean 'params'"):
        build(PublishedConfig, entry, "mine: published")
