"""Loops, proposers, verifiers, trees, drafters, rules and models do not know that a kernel exists:
an execution puts its calls in the place of their methods."""

import re
from pathlib import Path

import decoders

ROOT = Path(decoders.__file__).parent
ROOMS = ("loops", "propose", "verify", "models")
NAMES = re.compile(r"execution\.cpu|native", re.IGNORECASE)


def test_no_part_of_a_decoder_names_the_cpu_kernel() -> None:
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    assert len(files) > 30
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if NAMES.search(re.sub(r"alternative", "", line, flags=re.IGNORECASE))
    ]
    assert not found, "\n".join(found)
