"""`bench gpu-check`: stages in order, a verdict each, a stop at the first failure. Stand-in stages
run on any machine; the real ones are checked for what they would run."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.__main__ import main
from bench.config.compose import compose_study
from bench.gpu_check import command, stages
from bench.gpu_check.command import ROOT, read_words
from bench.gpu_check.run import run_stages
from bench.gpu_check.stage import FAILED, OFF, PASSED, SKIPPED, Expected, Stage, Verdict
from bench.gpu_check.write import save
from tests.bench.fakes import SEARCHPATH


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def value(folder: Path) -> float:
    return float((folder / "value").read_text())


def writes(number: str) -> list[str]:
    return python(f"open('OUT/value', 'w').write('{number}'); print('wrote {number}')")


FITS = Stage("fits", "", [writes("1.5")], [Expected("step", "ms", value, 1.0, 1.7)])
SLOW = Stage("slow", "", [writes("9")], [Expected("step", "ms", value, 1.0, 1.7)])
BREAKS = Stage("breaks", "", [python("print('why'); raise SystemExit(3)"), writes("1")])
EMPTY = Stage("empty", "", [python("pass")], [Expected("step", "ms", value)])
LARGE = Stage("large", "", [writes("1")], memory_gb=30)
HANGS = Stage("hangs", "", [python("import time; time.sleep(60)")], seconds=1)


def run(out: Path, *wanted: Stage) -> list[Verdict]:
    seen: list[int] = []
    found = run_stages(wanted, out, 16.0, lambda v: seen.append(len(v)), ROOT)
    assert seen == list(range(1, len(wanted) + 1))  # told after every stage
    return found


def test_stages_stop_at_the_first_failure(tmp_path: Path) -> None:
    found = run(tmp_path, FITS, LARGE, SLOW, BREAKS, FITS)
    assert [v.verdict for v in found] == [PASSED, SKIPPED, OFF, FAILED, SKIPPED]
    assert found[1].note == "needs 30 GB on the card, this one has 16"
    assert found[2].note == "not as expected: step" and not found[2].stops
    assert found[3].note.startswith("status 3 of: ") and "| why" in found[3].note
    assert found[4].note == "breaks failed"
    assert not (tmp_path / "4_breaks" / "value").exists()  # its second command did not run
    assert not (tmp_path / "5_fits").exists()
    assert "wrote 1.5" in (tmp_path / "1_fits" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("stage", "note"),
    [
        (EMPTY, "left no figure for step"),
        (HANGS, "took longer than 1 s"),
        (Stage("absent", "", [["/no/such/program"]]), "could not be started"),
    ],
)
def test_what_leaves_nothing_has_failed(tmp_path: Path, stage: Stage, note: str) -> None:
    (found,) = run(tmp_path, stage)
    assert found.verdict == FAILED and note in found.note


def test_the_folder_shows_figures_beside_what_is_expected(tmp_path: Path) -> None:
    save(tmp_path, {"gpu": "a card", "driver": ""}, run(tmp_path, FITS, SLOW, EMPTY))
    shown = (tmp_path / "README.md").read_text()
    assert "* gpu: a card" in shown and "* driver: not known" in shown
    assert "| fits: step | 1.5 ms | 1 to 1.7 |" in shown
    assert "| slow: step | **9 ms** | 1 to 1.7 |" in shown
    read = json.loads((tmp_path / "verdicts.json").read_text())
    assert [s["verdict"] for s in read["stages"]] == [PASSED, OFF, FAILED]
    assert read["stages"][2]["figures"][0]["value"] is None


def test_skipped_tests_are_no_success(tmp_path: Path) -> None:
    read = stages.ran("f.py").read
    for tests, skipped, expected in ((5, 2, 3.0), (5, 5, math.nan)):
        text = f'<testsuites><testsuite tests="{tests}" skipped="{skipped}"/></testsuites>'
        (tmp_path / "f.py.xml").write_text(text)
        assert read(tmp_path) == pytest.approx(expected, nan_ok=True)


def test_figures_are_read_from_the_tables_of_a_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "xl"
    run_dir.mkdir()
    (run_dir / "steps.csv").write_text(f"step,ms\nAR step,1.2\n{stages.VERIFY},2.0\n")
    (run_dir / "summary.csv").write_text("decoder,mal\nar,1.0\nlantern_pp_replayed,3.6\n")
    assert stages.of_step("xl", stages.VERIFY, "ms")(tmp_path) == 2.0
    assert stages.of_decoder("xl", stages.REPLAYED, "mal")(tmp_path) == 3.6
    for read in (stages.of_step("xl", "no step", "ms"), stages.of_decoder("xl", "ar", "none")):
        with pytest.raises(LookupError):
            read(tmp_path)


def test_the_stages_run_what_exists() -> None:
    for stage in stages.STAGES:
        for words in stage.commands:
            assert words[:2] == [sys.executable, "-m"]
            if words[2] == "pytest":
                assert (ROOT / words[-1]).is_file()
                continue
            config = compose_study(words[4:])
            assert config.backend.execution == "graph" and "OUT" in str(config.run_dir)
            names = [entry.name for entry in config.decoders]
            assert ("lantern_pp" if stage.name == "speed" else stages.REPLAYED) in names
    names = {stage.name for stage in stages.STAGES}
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert all(f"| `{name}` |" in page for name in names)


def test_without_a_card_it_says_what_is_needed(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["gpu-check", f"out={tmp_path / 'out'}"]) == 2
    shown = capsys.readouterr().err
    assert "compute capability 8.0" in shown and "nvidia-smi" in shown
    assert not (tmp_path / "out").exists()


def test_the_command_writes_the_folder(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "card", lambda: ({"gpu": "stand-in"}, 16.0))
    monkeypatch.setattr(command, "STAGES", (FITS, BREAKS, SLOW))
    assert main(["gpu-check", f"out={tmp_path / 'a'}"]) == 1
    assert main(["gpu-check", f"out={tmp_path / 'b'}", "stages=fits,slow"]) == 0
    shown = capsys.readouterr()
    assert "fits: passed" in shown.out and "breaks: failed" in shown.err
    assert "send the whole folder" in shown.out
    assert "stand-in" in (tmp_path / "a" / "README.md").read_text()
    assert main(["gpu-check", f"out={tmp_path / 'a'}", "stages=fits"]) == 2
    assert "holds an earlier check" in capsys.readouterr().err


def test_a_card_that_does_not_answer_is_told(monkeypatch, capsys, tmp_path: Path) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\nand more")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", refused)
    assert main(["gpu-check", f"out={tmp_path / 'out'}"]) == 2
    shown = capsys.readouterr().err
    assert "driver on your system is too old. `nvidia-smi`" in shown and "and more" not in shown


ON_CPU = {
    stages.GRAPH: "backend=cpu",
    stages.XL: "model=random24",
    stages.ANOLE: "model=random24",
    "model.grid=16": "acceptance.k=3",
}
SMALL = ("acceptance.k=3", "latency.warmup_max=1", "gate=false")


@pytest.mark.slow
@pytest.mark.parametrize("stage", stages.STAGES[2:], ids=lambda stage: stage.name)
def test_the_commands_of_a_stage_leave_its_figures(stage: Stage, tmp_path: Path) -> None:
    """On the processor, with a model of a few codes."""
    commands = []
    for words in stage.commands:
        assert {stages.GRAPH} <= set(words)
        own = () if any(word.startswith("model=") for word in words) else ("model=random24",)
        swapped = [ON_CPU.get(word, word) for word in words]
        commands.append([*swapped, *own, *SMALL, SEARCHPATH, "latency.prompts=2"])
    (found,) = run(tmp_path, replace(stage, commands=commands, memory_gb=0))
    assert found.verdict in (PASSED, OFF), found.note
    assert not any(math.isnan(figure.value) for figure in found.figures)


def test_bad_words_are_answered() -> None:
    for word, expected in {"study=main": "takes out=DIR", "stages=kernal": "kernels"}.items():
        with pytest.raises(command.ConfigError, match=expected):
            read_words([word])
