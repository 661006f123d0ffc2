"""`scripts.gpu_check`: each stage by itself, a verdict each. Stand-ins of stages run anywhere, the
real ones on the processor, without what a bare machine lacks."""

import re
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.config.compose import compose_study
from scripts import gpu_check
from scripts.gpu_check import FAILED, PASSED, ROOT, Stage, main, run_stage
from tests.bench.fakes import SEARCHPATH


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def writes(number: str) -> list[str]:
    table = f"open('OUT/run/roofline.csv', 'a').write('decoder,step_ms\\nar,{number}\\n')"
    return python(f"import os; os.makedirs('OUT/run', exist_ok=True); {table}")


STEP = (("roofline", "ar", "step_ms"),)
FITS = Stage("fits", writes("1.5"), STEP)
BREAKS = Stage("breaks", python("open('OUT/there')"), ())
LARGE = Stage("large", writes("1"), STEP, memory_gb=30)


def test_each_stage_is_by_itself(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu_check, "card", lambda: ({"gpu": "stand-in"}, 16.0))
    monkeypatch.setattr(gpu_check, "STAGES", (BREAKS, LARGE, FITS))
    assert main([f"out={tmp_path}"]) == 1
    shown = capsys.readouterr()
    assert "No such file or directory: '" in shown.err and "log.txt" in shown.err
    assert f"tar czf gpu_check.tgz {tmp_path}" in shown.out.splitlines()[-1]
    page = (tmp_path / "README.md").read_text()
    assert "* gpu: stand-in" in page and "needs 30 GB on the card, this one has 16" in page
    assert "| fits | passed |" in page and "ar step" in page and "1.5" in page
    assert main([f"out={tmp_path}", "stages=fits"]) == 0
    assert main([f"out={tmp_path}", "stages=fit"]) == 2


def test_the_page_promises_the_time_after_which_stages_are_stopped():
    page = (ROOT / "docs" / "gpu.md").read_text()
    minutes = sum(stage.seconds for stage in gpu_check.STAGES) // 60
    assert page.startswith("# The first hour on a GPU") and minutes <= 60
    assert f"end after {minutes} minutes at the latest" in page
    for stage in gpu_check.STAGES:
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{stage.name}` |"))
        assert line.endswith(f"| {stage.seconds // 60} min |")


def test_the_commands_of_the_page_are_those_of_a_study():
    page = (ROOT / "docs" / "gpu.md").read_text().replace("\\\n", "")
    lines = re.findall(r"^python -m bench (?:run|fetch|compare) (.*)$", page, re.MULTILINE)
    studies = [compose_study(shlex.split(line, comments=True)) for line in lines]
    assert {study.name for study in studies} == {"lantern_table"} and len(studies) == 5
    trial = next(study for study in studies if "trial" in study.run_dir)
    assert [entry.name for entry in trial.decoders] == ["ar", "eagle2", "lantern_released_d0.2"]
    assert (trial.latency.prompts, trial.quality.images, trial.metric) == (10, 10, None)
    assert f"whole table, {len(studies[-1].decoders)} rows" in page


def test_a_stage_that_hangs_is_stopped_with_what_it_started(monkeypatch, tmp_path):
    code = "import subprocess as s, time; print(s.Popen(['sleep', '60']).pid); time.sleep(60)"
    row = run_stage(Stage("hangs", python(code), (), seconds=3), tmp_path, 16.0)
    assert row.verdict == FAILED and "stopped after 3 s" in row.note
    child = Path("/proc") / (tmp_path / "log.txt").read_text().splitlines()[-1] / "status"
    for _ in range(50):
        if not child.exists() or "State:\tZ" in child.read_text():
            return
        time.sleep(0.1)
    pytest.fail("its child goes on")


def test_what_leaves_no_figure_has_failed(tmp_path):
    for stage in (
        Stage("nothing", python("pass"), STEP),
        Stage("skipped", python("print('5 skipped, 0 passed in 1s')"), ()),
        Stage("empty", writes(""), STEP),
    ):
        row = run_stage(stage, tmp_path / stage.name, 16.0)
        assert row.verdict == FAILED and "left no figure" in row.note


def test_the_stages_run_what_exists():
    page = (ROOT / "docs" / "gpu.md").read_text()
    for stage in gpu_check.STAGES:
        assert f"| `{stage.name}` |" in page
        if stage.command[2] == "pytest":
            assert [*(ROOT / stage.command[-1]).glob("test_gpu_*.py")]
        else:
            assert compose_study(stage.command[4:]).backend.execution == "graph"


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_card_one_line_says_what_is_needed(broken, monkeypatch, capsys):
    def refused(*_: object) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\nand more")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(broken))
    monkeypatch.setattr(torch.cuda, "get_device_properties", refused)
    assert main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "compute capability 8.0" in line and ("too old" if broken else "nvidia-smi") in line


LACKING = "ftfy itables open_clip playwright timm torch_fidelity torchvision"
BARE = f"""import sys
sys.modules.update(dict.fromkeys("{LACKING}".split()))
from bench.__main__ import main
sys.exit(main(sys.argv[1:]))"""
SMALL = (
    "backend=cpu", "model=random24", "latency.warmup_max=1", "latency.prompts=2", "latency.busy=1",
    "backend.threads=1", "backend.compile=off", "acceptance.k=3", SEARCHPATH,
)  # fmt: skip


@pytest.mark.slow
def test_a_bare_machine_leaves_the_figures_of_the_costs(tmp_path):
    """On the processor, with a model of a few codes, without what pages and metrics are made of."""
    costs = gpu_check.STAGES[0]
    words = [*costs.command[3:], *SMALL]
    bare = replace(costs, command=[sys.executable, "-c", BARE, *words])
    row = run_stage(bare, tmp_path, 1.0)
    assert row.verdict == PASSED, row.note
    assert all(float(figure.split()[-1]) > 0 for figure in row.figures)
    assert (tmp_path / "run" / "report" / "table.txt").exists()
    assert "the page's tables do not sort" in (tmp_path / "log.txt").read_text()
