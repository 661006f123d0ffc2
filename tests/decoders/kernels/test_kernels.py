"""The Triton kernels on a machine without a GPU: their cases run in Triton's interpreter, which has
to be switched on before Triton is imported, hence in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]
FEWEST = {  # cases that must have run
    "tests/decoders/kernels/cases_attention.py": 18,
    "tests/decoders/kernels/cases_sampling.py": 17,
    "tests/decoders/kernels/cases_recorded.py": 9,
}


def interpreted(file: str, report: Path) -> list[ElementTree.Element]:
    """Runs a file in the interpreter -> its test cases."""
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=1200"]
    done = subprocess.run(
        [*run, f"--junitxml={report}", file],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return list(ElementTree.parse(report).iter("testcase"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("file", FEWEST)
def test_the_kernels_in_triton_s_interpreter(file, tmp_path):
    pytest.importorskip("triton", reason="no kernels without Triton")
    cases = interpreted(file, tmp_path / "cases.xml")
    assert len(cases) >= FEWEST[file]
    assert [case.attrib["name"] for case in cases if len(case)] == []  # none failed or skipped


def test_importing_the_room_does_not_import_triton():
    names = ["choose", "candidates", "reference", "sampling", "tree_attention", "runtime"]
    code = "import sys\n" + "\n".join(f"import decoders.kernels.{name}" for name in names)
    code += "\nassert 'triton' not in sys.modules, 'triton was imported'"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
