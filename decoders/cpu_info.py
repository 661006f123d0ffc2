"""What compiled code depends on besides its source: the processor, as Linux describes it, with its
vector instructions, and the C++ compiler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
COMPILERS = ("g++", "c++")
BF16_DOT, BF16_TILES = "AVX512-BF16", "AMX-BF16"  # instructions that multiply bfloat16
# Flags that Linux gives -> the vector instructions that they stand for, widest first.
VECTOR_FLAGS = {
    "amx_bf16": BF16_TILES,
    "avx512_bf16": BF16_DOT,
    "avx512f": "AVX-512",
    "avx2": "AVX2",
    "sve": "SVE",
    "asimd": "NEON",
}


def cpuinfo() -> dict[str, list[str]]:
    """Key -> the distinct values of all processors, the first one's first; empty elsewhere."""
    info: dict[str, list[str]] = {}
    try:
        text = CPUINFO.read_text()
    except OSError:  # another system, or a service that may not read it
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        values = info.setdefault(key.strip(), [])
        if value.strip() not in values:
            values.append(value.strip())
    return info


def vectors() -> list[str]:
    """The processor's kinds of vector instructions, widest first."""
    info = cpuinfo()
    words = {word for key in ("flags", "Features") for word in " ".join(info.get(key, [])).split()}
    return [name for word, name in VECTOR_FLAGS.items() if word in words]


def processor() -> dict[str, str]:
    """What tells processors of one name apart, "" where Linux does not say. Cores: all of the
    system, those that this process may not use too."""
    info = cpuinfo()
    keys = {
        "cpu_vendor": ("vendor_id", "CPU implementer"),
        "cpu_family": ("cpu family", "CPU architecture"),
        "cpu_model": ("model", "CPU part"),
        "cpu_stepping": ("stepping", "CPU revision"),
    }
    found = {
        name: next((info[key][0] for key in some if info.get(key)), "")
        for name, some in keys.items()
    }
    return found | {"cpu_cores": str(len(info.get("processor", [])) or os.cpu_count() or "")}


def unused() -> tuple[str, ...]:
    """The compiler's flags for instructions that the kernel is faster without.

    Intel's AVX512-BF16 products take two cycles, and two float32 products take one. With AMX they
    are short work beside the tiles'.
    """
    intel = cpuinfo().get("vendor_id") == ["GenuineIntel"]
    slow = intel and BF16_DOT in vectors() and BF16_TILES not in vectors()
    return ("-mno-avx512bf16",) if slow else ()


def features() -> str:
    """The processor's model and features, as far as Linux tells."""
    info = cpuinfo()
    wanted = ("CPU part", "Features", "flags", "model name")
    return "\n".join(f"{key}: {value}" for key in wanted for value in sorted(info.get(key, [])))


def compiler() -> tuple[str, ...] | None:
    """The words that call the C++ compiler: those of $CXX ("ccache g++ -m64"), else the first of
    `COMPILERS` that there is. None where its program is not there."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError:  # a quote that is not closed
        return None
    for program, *words in (named,) if named else ([name] for name in COMPILERS):
        if path := shutil.which(program):
            return path, *words
    return None


@cache
def version(program: tuple[str, ...]) -> str:
    """What the compiler says of itself; it names Clang, under whatever name that goes."""
    done = subprocess.run([*program, "--version"], capture_output=True, text=True, check=False)
    return done.stdout
