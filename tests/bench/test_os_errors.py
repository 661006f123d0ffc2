"""What the system refuses is one message; a home folder is written out."""

import errno
import os
from pathlib import Path

import pytest

from bench import __main__ as program
from bench.config.arguments import at_home
from bench.config.compose import compose_study
from bench.errors import describe_os_error
from bench.files import prepare_file, write_text


def refused(code: int, name: str) -> OSError:
    return OSError(code, os.strerror(code), name)


def test_a_refusal_is_a_message_that_names_the_file_and_a_lost_connection_is_none(capsys):
    def command(_: object) -> int:
        raise refused(errno.EACCES, "/data/x")

    assert program.run_command(command, []) == 2
    assert "/data/x" in capsys.readouterr().err
    assert describe_os_error(OSError(errno.ECONNRESET, "")) is None
    assert describe_os_error(OSError(errno.ENOSPC, "")) is not None


def test_a_place_that_cannot_be_written_is_named_as_it_was_given(tmp_path):
    long = tmp_path / ("x" * 252)  # a temporary name beside it is too long
    for path, named in ((Path("/proc/x.json"), "/proc"), (long, str(long))):
        with pytest.raises(OSError) as error:
            prepare_file(path)
        assert error.value.filename == named


@pytest.mark.parametrize("name", ["/nowhere/.cache", "/nowhere/.cache/lantern-bench/compiled"])
def test_a_home_folder_that_cannot_be_written_is_told_what_to_set(name, monkeypatch):
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for code in (errno.EACCES, errno.ENOTDIR, errno.ENOENT):
        assert "set XDG_CACHE_HOME" in str(describe_os_error(refused(code, name)))
    assert "XDG_CACHE_HOME" not in str(describe_os_error(refused(errno.ENOSPC, name)))


def test_the_home_folder_is_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    for word in ("~acceptance.k", "run_dir=a~b"):
        assert at_home(word) == word
    words = ["study=smoke", 'run_dir="~/my runs"', "prompts=file", 'prompts.path="~/p(1).txt"']
    config = compose_study([*map(at_home, words)])
    assert config.run_dir == "/home/ada/my runs"
    assert config.prompts.kwargs["path"] == "/home/ada/p(1).txt"


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_whose_mode_cannot_be_set_is_a_result_all_the_same(code, tmp_path, monkeypatch):
    """On CIFS, vfat and some FUSE."""

    def refuse(path: object, *_: object, **__: object) -> None:
        raise refused(code, str(path))

    monkeypatch.setattr(os, "chmod", refuse)
    write_text(tmp_path / "x.txt", "whole")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["whole"]
