"""Where compiled code is kept: a home folder that machines of several kinds share has a folder for
each, and a path that a compiler cannot read is said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from decoders import cpu_info
from decoders.cache_folder import compiled_folder, no_programs
from decoders.execution import execution

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


def test_what_is_compiled_is_kept_where_the_docs_say(home, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    execution("compile", (1,), torch.device("cpu"))
    assert Path(cache_dir()).parent == home / "lantern-bench"
    assert Path(cache_dir()).name.startswith("compiled-")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(home / "mine"))  # a user's choice
    execution("graph", (1,), torch.device("cuda"))
    assert cache_dir() == str(compiled_folder()) == str(home / "mine")


@pytest.mark.parametrize("odd", [" ", "'", "(2)", "é&"])
def test_a_path_that_a_compiler_does_not_read_is_said(odd, home, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(home / f"Anna{odd}disk"))
    assert "set XDG_CACHE_HOME to a folder without" in no_programs(compiled_folder())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(home))
    assert no_programs(compiled_folder()) == ""


def test_no_import_settles_on_torch_s_own_folder():
    """Torch does where parts of its compiler are imported before `compiled_folder` is called."""
    code = "import os, bench.commands.run, decoders.execution.gpu\n"
    code += "print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"
    environment = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
