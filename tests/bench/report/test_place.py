"""A run is reported where it may be written, and never written through a link."""

import os
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.data.errors import FolderError
from bench.run.runner import run_study
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
def test_a_report_elsewhere_leaves_the_run_as_it_was(tmp_path, capsys, monkeypatch, finished):
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
    assert there >= {"index.html", "table.txt", "table.md", "table.tex", "table.csv", "plots"}
    assert "contact_sheet.webp" in there and list((out / "plots").glob("*.svg"))
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "fake_spec" in page and ("partial: 4" in page) != finished
    assert f"report: {out / 'index.html'}" in capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)  # root may write anywhere
        assert main(["report", *words]) == 2
        assert "read-only; report it elsewhere with out=DIR" in capsys.readouterr().err
    assert state(run) == before
    if finished:
        assert main(["report", f"run_dir={run}"]) == 0, "its folder alone says enough"
        assert (run / "report" / "table.csv").is_file()


@pytest.mark.parametrize("place", ["rows", "rows/inside", "study.json"])
def test_nothing_is_written_through_a_link(fake_study, tmp_path, place):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = elsewhere
    if place == "study.json":
        target = elsewhere / "file"
        target.write_text("precious")
    link = tmp_path / "run" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    before = state(elsewhere)
    with pytest.raises(FolderError, match="remove the link"):
        run_study(fake_study("latency.prompts=1", "quality.images=0"))
    assert state(elsewhere) == before and link.is_symlink()
