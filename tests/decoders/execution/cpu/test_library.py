"""The CPU kernel's library: compiled once, and a clear word where it cannot be."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.config.compose import choose_execution
from bench.config.schema import BackendConfig
from decoders.api import DecoderError
from decoders.execution.cpu import library
from tests.decoders.execution.cpu.cases import needs_kernel

CPU = BackendConfig("cpu", "cpu", "bfloat16", threads=1, execution="compile")


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """The real kernel's operators: what these tests build is not loaded."""
    if library.missing() is None:
        library.load()


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache folder, and nothing remembered of another test's library or compiler."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    for cached in (library.load, library.version, library.fault):
        cached.cache_clear()
    yield
    for cached in (library.load, library.version, library.fault):
        cached.cache_clear()


def script(path: Path, text: str) -> str:
    """An executable that stands for a compiler."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The calls of a compiler that writes what it is asked for, and takes no time."""
    calls = tmp_path / "calls"
    text = f'echo "$@" >> {calls}; for last; do :; done; [ "$last" = --version ] || echo > "$last"'
    monkeypatch.setenv("CXX", f"'{script(tmp_path / 'a cache', text)}' g++ -m64")
    return calls


def test_without_a_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(library.platform, "system", lambda: "Linux")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert choose_execution(CPU).execution == "eager"
    assert "install g++, or name one in CXX" in str(library.missing())
    with pytest.raises(DecoderError, match=r"cannot be built: no C\+\+ compiler \(g\+\+, c\+\+\)"):
        library.load()
    monkeypatch.setattr(library.platform, "system", lambda: "Darwin")
    assert library.missing() == "it is built on Linux only, this is Darwin"


@needs_kernel
def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    text = 'case "$*" in --version|*" -x c++ "*) ;; *) echo out of biscuits >&2; exit 3;; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "own", text))
    assert choose_execution(CPU).execution == "compile"
    with pytest.raises(DecoderError) as caught:
        library.load()
    for words in ("ended with 3", "out of biscuits", "set backend.execution=eager"):
        assert words in str(caught.value)
    assert not [*library.folder().iterdir()]  # nothing half made is left


OLD = {
    "g++ 8": ("error: unrecognized command line option '-std=c++20'", "*-std=c++20*"),
    "without OpenMP": ("fatal error: libgomp.spec: No such file or directory", "*-fopenmp*"),
    "the driver alone": ("fatal error: cannot execute 'cc1plus'", "*-c*"),
}


@pytest.mark.parametrize("name", OLD)
def test_a_compiler_that_cannot_is_as_none(name, tmp_path, monkeypatch, caplog):
    says, flag = OLD[name]
    text = f'case "$*" in --version) echo old 8.5;; {flag}) echo "{says}" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "old", text))
    assert choose_execution(CPU).execution == "eager"
    assert says in caplog.text and "name g++ 10 or newer in CXX" in caplog.text
    assert "-march" not in caplog.text, "not the whole command"


@needs_kernel
def test_a_compiler_may_be_several_words(built, monkeypatch):
    """As "ccache g++" is."""
    library.load()
    calls = built.read_text().splitlines()
    assert [line.split()[:2] for line in calls] == [["g++", "-m64"]] * 4
    assert calls[0].endswith("--version")
    for wrong in ("ccache9 g++", '"g++', "'' g++"):
        monkeypatch.setenv("CXX", wrong)
        assert str(library.missing()).startswith(f"CXX names {wrong!r}, which is no program")
    monkeypatch.setenv("CXX", " ")
    assert library.missing() is None


def test_a_library_that_cannot_be_loaded_says_why(tmp_path, monkeypatch):
    path = tmp_path / "kernel.so"
    path.write_bytes(b"no library")
    with pytest.raises(DecoderError, match=r"cannot be loaded: .* delete .*kernel\.so, or set"):
        library._open(path)
    noexec = SimpleNamespace(f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(os, "statvfs", lambda place: noexec)
    with pytest.raises(DecoderError, match=r"mounted noexec: set XDG_CACHE_HOME to another"):
        library._open(path)


@needs_kernel
def test_it_is_compiled_once_for_a_source_and_a_machine(built, tmp_path, monkeypatch):
    source = tmp_path / "source"
    shutil.copytree(library.KERNEL_SOURCE.parent, source)
    monkeypatch.setattr(library, "KERNEL_SOURCE", source / library.KERNEL_SOURCE.name)

    def compiled() -> int:
        """How often it was compiled, once another process has loaded it."""
        library.load.cache_clear()
        library.load()
        library.load()
        return sum("kernel.o" in line and " -c " in line for line in built.read_text().splitlines())

    assert compiled() == 1
    last = built.read_text().splitlines()[-1]
    assert "-shared" in last and "-fopenmp" not in last
    (file,) = library.folder().iterdir()
    assert file.suffix == ".so" and os.environ["XDG_CACHE_HOME"] in str(file)
    assert compiled() == 1
    monkeypatch.setattr(library, "features", lambda: "another one")
    assert compiled() == 2  # a home folder on several machines
    header = min(source.glob("*.h"))
    header.write_text(header.read_text() + "// edited")
    assert compiled() == 3
