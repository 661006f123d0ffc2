"""The CPU kernel as it is compiled for other processors: the same tests in shorter vectors."""

import subprocess
from collections.abc import Iterator

import pytest

from decoders.execution.cpu import library
from decoders.execution.cpu.processor import vectors
from tests.decoders.execution.cpu.cases import needs_kernel
from tests.decoders.execution.cpu.test_layers import (  # noqa: F401
    test_a_forward_is_pytorchs,
    test_a_product_alone,
    test_a_row_alone_has_the_bits_it_has_in_a_batch,
)
from tests.decoders.execution.cpu.test_next import (  # noqa: F401
    calls,
    test_images_are_those_of_the_tensor_code,
)

# Instructions to compile for -> what this processor must have besides, so that they are others than
# its own.
NEEDED = {
    "x86-64": "AVX2",
    "x86-64-v3": "AVX-512",
    "x86-64-v4": "AVX512-BF16",
    "cooperlake": "AMX-BF16",
}
OTHERS = [name for name, besides in NEEDED.items() if besides in vectors()]
pytestmark = needs_kernel


@pytest.fixture(autouse=True, scope="module", params=OTHERS)
def _processor(request: pytest.FixtureRequest) -> Iterator[None]:
    asked = [library.compiler() or "g++", f"-march={request.param}", "-E", "-xc++", "/dev/null"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip(f"the compiler does not know {request.param} (g++ 11 does)")
    flags = [f"-march={request.param}" if "march" in flag else flag for flag in library.FLAGS]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(library, "FLAGS", tuple(flags))
        library.library.cache_clear()
        yield
    library.library.cache_clear()
