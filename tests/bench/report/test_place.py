"""A report elsewhere leaves the run as it was."""

from pathlib import Path

import pytest

from bench.__main__ import main
from tests.bench import fakes

FEW = ["latency.prompts=2", "quality.images=0", "decoders=[fake_ar,fake_spec]"]


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file and folder with its bytes and the time of its last change."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes() if path.is_file() else b"",
            path.stat().st_mtime_ns,
        )
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.parametrize("finished", [True, False])
def test_a_report_elsewhere_leaves_the_run_as_it_was(tmp_path, capsys, finished):
    run, out = tmp_path / "run", tmp_path / "new" / "report"
    words = [fakes.SEARCHPATH, "study=fake", f"run_dir={run}", *FEW]
    assert main(["run", *words]) == 0
    if not finished:
        (run / "records.parquet").unlink()
        (run / "summary.csv").unlink()
    before = state(run)
    for _ in range(1 + finished):  # the second takes the place of the first
        assert main(["report", *words, f"out={out}", "fairness.factor=9"]) == 0
    there = {path.name for path in out.iterdir()}
    assert there >= {"index.html", "table.txt", "table.md", "table.tex", "plots"}
    assert list((out / "plots").glob("*.pdf"))
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "fake_spec" in page and ("partial: 4" in page) != finished
    assert f"report: {out / 'index.html'}" in capsys.readouterr().out
    assert state(run) == before
    if finished:
        assert main(["report", f"run_dir={run}"]) == 0, "its folder alone says enough"
        assert (run / "report" / "table.md").is_file()
