"""python -m tests.cuda NAME ...: the table of docs/backends.md, for an H100.

Kernels per piece of decoders' compiled steps at LlamaGen-XL's sizes, and the most registers of a
thread and shared memory of a program.
"""

import sys

from decoders.api import Sampling
from tests.cuda.lowered import Binary, Compiler, spec_of
from tests.cuda.pretend import launches

SAMPLING = Sampling(cfg=7.5, top_k=1000)
HEAD = ("decoder", "kernels per piece", "per step", "registers", "shared bytes")


def line(*cells: object) -> None:
    sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")
    sys.stdout.flush()


def main(names: list[str]) -> None:
    compiler = Compiler()
    line(*HEAD)
    line(":--", ":--", "--:", "--:", "--:")
    for name in names:
        found = [k for k in compiler.step(name, SAMPLING).kernels if isinstance(k, Binary)]
        pieces = launches(spec_of(name), SAMPLING)
        said = [
            f"{one.phase} {one.layer:g} per layer + {one.rest:g}" if one.layer
            else f"{one.phase} {one.rest:g}"
            for one in pieces
        ]  # fmt: skip
        total = f"{sum(one.total for one in pieces):g}"
        most = (max(getattr(k, of) for k in found) for of in ("registers", "shared"))
        line(f"`{name}`", ", ".join(said), total, *(f"{each:,}" for each in most))


if __name__ == "__main__":
    main(sys.argv[1:])
