"""A run is reported where it may be written, and never written through a link."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.data.errors import FolderError
from bench.run.runner import run_study
from tests.bench import fakes

Words = Callable[..., list[str]]


@pytest.fixture
def words(tmp_path: Path) -> Words:
    """The words of a small study in tmp_path/run, behind a command."""

    def make(*more: str, run_dir: Path = tmp_path / "run") -> list[str]:
        small = ["latency.prompts=2", "quality.images=0", "decoders=[fake_ar,fake_spec]"]
        return [fakes.SEARCHPATH, "study=fake", f"run_dir={run_dir}", *small, *more]

    return make


def seen(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file and folder with its bytes and the time of its last change."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes() if path.is_file() else b"",
            path.stat().st_mtime_ns,
        )
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.parametrize("finished", [True, False])
def test_a_report_elsewhere_leaves_the_run_as_it_was(words, tmp_path, capsys, finished):
    assert main(["run", *words()]) == 0
    run, out = tmp_path / "run", tmp_path / "new" / "report"
    if not finished:
        (run / "records.parquet").unlink()
        (run / "summary.csv").unlink()
    before = seen(run)
    for _ in range(1 + finished):  # the second takes the place of the first
        assert main(["report", *words(f"out={out}", "fairness.factor=9")]) == 0
    assert seen(run) == before
    there = {path.name for path in out.iterdir()}
    assert there >= {"index.html", "table.txt", "table.md", "table.tex", "table.csv", "plots"}
    assert "partial" not in there and "contact_sheet.webp" in there
    assert list((out / "plots").glob("*.svg"))
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "fake_spec" in page and ("partial: 4" in page) != finished
    assert f"report: {out / 'index.html'}" in capsys.readouterr().out


def test_a_finished_run_is_reported_by_its_folder_alone(words, tmp_path):
    assert main(["run", *words()]) == 0
    assert main(["report", f"run_dir={tmp_path / 'run'}"]) == 0
    assert (tmp_path / "run" / "report" / "table.csv").is_file()


def test_a_read_only_run_says_how_it_is_reported(words, tmp_path, capsys, monkeypatch):
    assert main(["run", *words()]) == 0
    before = seen(tmp_path / "run")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    assert main(["report", *words()]) == 2
    assert "read-only; report it elsewhere with out=DIR" in capsys.readouterr().err
    assert seen(tmp_path / "run") == before


FILES = ("study.json",)


@pytest.mark.parametrize("place", ["rows", "rows/inside", *FILES])
def test_nothing_is_written_through_a_link(fake_study, tmp_path, place):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = elsewhere / "file" if place in FILES else elsewhere
    if place in FILES:
        target.write_text("precious")
    link = tmp_path / "run" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    before = seen(elsewhere)
    with pytest.raises(FolderError, match="remove the link"):
        run_study(fake_study("latency.prompts=1", "quality.images=0"))
    assert seen(elsewhere) == before and link.is_symlink()
