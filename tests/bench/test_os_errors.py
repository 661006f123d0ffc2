"""What the system refuses is one message: the file, what was wanted, what to do."""

import errno
import os
from collections.abc import Sequence

import pytest

from bench import __main__ as program
from bench.config.arguments import at_home
from bench.config.compose import compose_study
from bench.data.errors import describe_os_error


def refused(code: int, name: str | None = "/data/x") -> OSError:
    return OSError(code, os.strerror(code), name) if name else OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EACCES, "permissions"), (errno.EROFS, "Read-only"), (errno.ENOSPC, "free some"),
        (errno.EEXIST, "as a file where a folder"), (errno.ENAMETOOLONG, "name another"),
    ],
)  # fmt: skip
def test_what_the_system_refuses_is_named_with_advice(code, says, capsys):
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


def test_the_home_folder_is_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert at_home("run_dir=~/runs/x") == "run_dir=/home/ada/runs/x"
    assert at_home("run_dir=~") == "run_dir=/home/ada"
    assert at_home("~acceptance.k") == "~acceptance.k"
    assert at_home("run_dir=a~b") == "run_dir=a~b"
    words = ["study=smoke", 'run_dir="~/my runs"', "prompts=file", 'prompts.path="~/p(1).txt"']
    config = compose_study([*map(at_home, words)])
    assert config.run_dir == "/home/ada/my runs"
    assert config.prompts.kwargs["path"] == "/home/ada/p(1).txt"
