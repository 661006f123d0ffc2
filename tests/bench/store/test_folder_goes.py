"""The folder of a run, or a part of it, goes while the run goes on; and a run that is refused
leaves a folder that was there before as it was."""

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.errors import FolderError, describe_os_error
from bench.files import append, write_text
from bench.run.session import Session
from bench.run.study import run_study
from tests.bench import fakes


def replaced(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


GOES: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "renamed": lambda folder: folder.rename(folder.with_name("other")),
    "replaced": replaced,
}


@pytest.mark.parametrize("how", GOES)
@pytest.mark.parametrize("call", [1, 9])
def test_a_folder_that_goes_stops_the_run_at_the_next_row(how, call, fake_study, monkeypatch):
    plain, config = fakes.FakeLoop.generate, fake_study()

    def generate(loop, *words, **options):
        if len(fakes.CALLS) == call:
            GOES[how](Path(config.run_dir))
        return plain(loop, *words, **options)

    monkeypatch.setattr(fakes.FakeLoop, "generate", generate)
    with pytest.raises(FolderError, match="was removed or renamed while the run went on"):
        run_study(config)
    assert len(fakes.CALLS) < 20, "it stopped"
    folder = Path(config.run_dir)
    assert (folder.exists() and not any(folder.iterdir())) if how == "replaced" else (
        not folder.exists()
    )  # fmt: skip
    if how == "renamed":
        folder.with_name("other").rename(folder)
        monkeypatch.setattr(fakes.FakeLoop, "generate", plain)
        assert (run_study(config).rows.status == "ok").all()


def test_rows_that_go_are_decoded_again(fake_study, monkeypatch):
    config, plain = fake_study(), Session.run

    def run(self, *words):
        plain(self, *words)
        next((self.study.folder.path / "rows").iterdir()).unlink()

    monkeypatch.setattr(Session, "run", run)
    with pytest.raises(FolderError, match=r"rows are gone from .* decodes them again"):
        run_study(config)
    monkeypatch.setattr(Session, "run", plain)
    assert (run_study(config).rows.status == "ok").all()


@pytest.mark.parametrize("place", ["a folder", "a link", "nothing", "a link to a link"])
def test_a_refused_run_leaves_what_was_there(place, tmp_path, capsys):
    big, out = tmp_path / "big", tmp_path / "out"
    if place != "nothing":
        (out if place == "a folder" else big).mkdir()
    if place == "a link":
        out.symlink_to(big)
    if place == "a link to a link":
        (tmp_path / "between").symlink_to(big)
        out.symlink_to(tmp_path / "between")
    prompts = tmp_path / "p.txt"
    prompts.write_text("a zebra on a street\ntwo zebras\na zebra in the rain\n")
    words = [
        "run",
        "study=smoke",
        "decoders=[ar]",
        "gate=false",
        "metric=none",
        "backend=cpu_torch",
    ]
    words += ["latency.prompts=1", "latency.blocks=1", "quality.images=0", "prompts=file"]
    assert main([*words, f"prompts.path={prompts}", f"run_dir={out}"]) == 2
    assert "zebra" in capsys.readouterr().err, "the true reason is said"
    assert out.exists() == (place != "nothing")
    assert out.is_symlink() == ("link" in place)
    assert not out.exists() or not any(out.iterdir())


# ---- files that may not grow --------------------------------------------------------------------


@pytest.fixture
def small_files(monkeypatch) -> int:
    """4 KiB is the most that a file may have."""
    import resource

    most, before = 4096, resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    yield most
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_file_that_may_not_grow_is_named_with_its_limit(small_files, tmp_path):
    rows = tmp_path / "rows.jsonl"
    append(rows, b"one row\n")
    for write in (lambda: append(rows, b"x" * small_files), lambda: write_text(rows, "x" * 9000)):
        with pytest.raises(OSError, match="File too large") as refused:
            write()
        assert re.search(r"rows\.jsonl: .*ulimit -f", str(describe_os_error(refused.value)))
    assert rows.read_bytes().startswith(b"one row\n")
    assert [*tmp_path.iterdir()] == [rows], "no half of a file is left"
