"""A home folder that machines of several kinds share: what is compiled for one is not loaded on
another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from decoders import cpu_info
from decoders.cache_folder import compiled_folder

FLAGS = "fpu sse2 avx2 avx512f avx512_vnni avx512_bf16"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """An empty cache, and nothing of this machine but its compiler."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_info, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def folder_on(home: Path, monkeypatch, model: str = "A", flags: str = FLAGS) -> Path:
    """What another process on such a machine takes."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    (home / "cpuinfo").write_text(f"model name : {model}\nflags : {flags}\n" * 2)
    folder = compiled_folder()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder), "torch reads it there"
    return folder


def test_each_kind_of_processor_has_a_folder_of_its_own(home, monkeypatch):
    first = folder_on(home, monkeypatch)
    assert first.parent == home / "lantern-bench" and first == folder_on(home, monkeypatch)
    assert folder_on(home, monkeypatch, flags=FLAGS.replace(" avx512_vnni", "")) != first
    assert folder_on(home, monkeypatch, model="B") != first


def test_each_compiler_has_one_too_also_one_that_cannot_be_run(home, monkeypatch):
    first = folder_on(home, monkeypatch)
    for name, text in (("own", "#!/bin/sh\necho g++ 99\n"), ("damaged", "")):
        (home / name).write_text(text)
        (home / name).chmod(0o755)
        monkeypatch.setenv("CXX", str(home / name))
        assert folder_on(home, monkeypatch) != first


def test_a_folder_that_a_user_chose_is_taken(home, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(home / "mine"))
    assert compiled_folder() == home / "mine"


def test_no_import_settles_on_torch_s_own_folder():
    """Torch does where parts of its compiler are imported before `compiled_folder` is called."""
    code = "import os, bench.commands.run, decoders.execution.gpu\n"
    code += "print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"
    environment = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
