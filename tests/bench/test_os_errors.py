"""What the system refuses is one message: the file, what was wanted, what to do."""

import errno
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import __main__ as program
from bench.config.compose import compose_study
from bench.config.words import word_at_home
from bench.data.errors import describe_os_error

ROOT = Path(__file__).parents[2]


def refused(code: int, name: str | None = "/data/x") -> OSError:
    return OSError(code, os.strerror(code), name) if name else OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EACCES, "permissions"), (errno.EROFS, "Read-only"), (errno.ENOSPC, "free some"),
        (errno.EDQUOT, "free some"), (errno.ENOTDIR, "under a file"), (errno.ELOOP, "link"),
        (errno.EISDIR, "name the file"), (errno.ENAMETOOLONG, "shorter"), (errno.EIO, "the disk"),
    ],
)  # fmt: skip
def test_every_refusal_has_its_advice(code, says, capsys):
    def command(words: Sequence[str]) -> int:
        raise refused(code)

    assert program.run_command(command, []) == 2
    said = capsys.readouterr().err
    assert "/data/x" in said and says in said


def test_a_full_disk_without_a_name_is_said_and_a_lost_connection_is_not_hidden():
    assert "No space" in str(describe_os_error(refused(errno.ENOSPC, None)))
    assert describe_os_error(refused(errno.ECONNRESET, None)) is None
    assert describe_os_error(refused(errno.ENOENT, None)) is None


@pytest.mark.parametrize("name", ["/nowhere/.cache", "/nowhere/.cache/lantern-bench/compiled"])
def test_a_home_folder_that_cannot_be_written_is_told_what_to_set(name, monkeypatch):
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for code in (errno.EACCES, errno.ENOTDIR, errno.ENOENT):
        assert "set XDG_CACHE_HOME" in str(describe_os_error(refused(code, name)))
    assert "free some space" in str(describe_os_error(refused(errno.ENOSPC, name)))


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch, capsys):
    def nobody(_: int) -> None:
        raise KeyError("no such user")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    for words in (["report", "run_dir=~/r"], ["run", "study=smoke", 'run_dir="~/my runs"']):
        assert program.main(words) == 2
        assert "set HOME" in capsys.readouterr().err
    monkeypatch.setenv("XDG_CONFIG_HOME", "for the test to put back")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert program.main(["list", "backend"]) == 0
    assert os.environ["XDG_CONFIG_HOME"] == "/caches", "libraries of the report ask for it"


@pytest.mark.parametrize(
    ("closed", "words", "status"),
    [
        ("<&- >&- 2>&-", "list backend", 0), ("2>/dev/full", "list nope", 2),
    ],
)  # fmt: skip
def test_closed_streams_change_no_status(closed, words, status):
    """A daemon's child may have none of its standard streams."""
    command = f"{shlex.quote(sys.executable)} -m bench {words} {closed}"
    assert subprocess.run(["bash", "-c", command], cwd=ROOT, check=False).returncode == status


def test_the_home_folder_is_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert word_at_home("run_dir=~/runs/x") == "run_dir=/home/ada/runs/x"
    assert word_at_home("run_dir=~") == "run_dir=/home/ada"
    assert word_at_home("~acceptance.k") == "~acceptance.k"
    assert word_at_home("run_dir=a~b") == "run_dir=a~b"
    words = ["study=smoke", 'run_dir="~/my runs"', "prompts=file", 'prompts.path="~/p(1).txt"']
    config = compose_study([*map(word_at_home, words)])
    assert config.run_dir == "/home/ada/my runs"
    assert config.prompts.kwargs["path"] == "/home/ada/p(1).txt"
