"""The CPU kernel as it is compiled for other processors: the same tests in shorter vectors. In a
process of their own, as operators are registered once per process."""

import subprocess
import sys
from pathlib import Path

import pytest

from decoders import cpu_info
from decoders.cpu_info import vectors
from decoders.execution.cpu import library
from tests.decoders.execution.cpu.cases import needs_kernel

# Instructions to compile for -> what this processor must have besides, so that they are others than
# its own.
NEEDED = {
    "x86-64": "AVX2",
    "x86-64-v3": "AVX-512",
    "x86-64-v4": "AVX512-BF16",
    "cooperlake": "AMX-BF16",
}
OTHERS = [
    name
    for name, besides in NEEDED.items()
    if besides in vectors() and not (besides == "AVX512-BF16" and cpu_info.unused())
]
TESTS = Path(__file__).with_name("test_layers.py")
PROGRAM = f"""
import sys, pytest
from decoders import cpu_info
from decoders.execution.cpu import library
march = "-march=" + sys.argv[1]
others = {{"-O3": "-O1"}}  # which compiles in half the time
flags = [march if "march" in flag else others.get(flag, flag) for flag in library.COMPILER_FLAGS]
library.COMPILER_FLAGS = tuple(flags)
names = "a_forward_is_pytorchs or a_product_alone or a_row_alone"
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", {str(TESTS)!r}, "-k", names]))
"""


@needs_kernel
@pytest.mark.parametrize("name", OTHERS)
def test_layers_on_other_processors(name: str) -> None:
    command = [*(library.compiler() or ["g++"]), f"-march={name}", "-E", "-xc++", "/dev/null"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"the compiler does not know {name} (g++ 11 does)")
    command = [sys.executable, "-c", PROGRAM, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "passed" in done.stdout
