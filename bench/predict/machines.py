"""What a projection is asked for: a machine of conf/hardware, a model of conf/model, and a run.

Why Hydra for the machine: a user's own is a YAML in a folder of `hydra.searchpath`, as any other
part is, and a figure of it is overridden as any other setting (`hardware.kernel_us=0`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml

from bench.config.catalogue import groups, option
from bench.config.hydra_edge import SEARCH, of_group
from bench.config.schema import LoaderConfig, build
from bench.config.words import given
from bench.data.errors import ConfigError
from decoders.kinds import Within, require

RUNS = Path("results/runs")
COMPOSED = "hardware", "model"
KEYS = (*COMPOSED, "study", "run_dir", "published", SEARCH)
Rate = Annotated[float, Within(1e-3, 1e6)]
Overhead = Annotated[float, Within(0, 1e4)]


@dataclass(frozen=True)
class Hardware:
    """A machine as its data sheets describe it, with the source of every figure.

    gpu: as papers call it; dense_bf16_tflops: without sparsity; graph_us, kernel_us: microseconds
    to launch a recorded step, and between two kernels of it, which no data sheet gives.
    """

    name: str
    gpu: str
    memory_gb_s: Rate
    dense_bf16_tflops: Rate
    graph_us: Overhead
    kernel_us: Overhead
    memory_source: str
    dense_bf16_source: str
    launch_source: str

    def __post_init__(self) -> None:
        require(self, "hardware.", ConfigError)
        for name in ("memory_source", "dense_bf16_source", "launch_source"):
            if not getattr(self, name).strip():
                raise ConfigError(f"hardware.{name} is empty: say where the figure comes from")

    @property
    def bytes_per_s(self) -> float:
        return 1e9 * self.memory_gb_s

    @property
    def operations_per_s(self) -> float:
        return 1e12 * self.dense_bf16_tflops

    def __str__(self) -> str:
        return (
            f"{self.gpu}: {self.memory_gb_s:,g} GB/s, {self.dense_bf16_tflops:,g} Tflop/s dense in "
            f"bfloat16, {self.graph_us:g} us per recorded step and {self.kernel_us:g} us per kernel"
        )


@dataclass(frozen=True)
class Asked:
    """folder: of the run; model: at whose size (None: the run's own); published: a table of
    published numbers (None: the project's)."""

    hardware: Hardware
    model: LoaderConfig | None
    folder: Path
    published: Path | None


def asked(words: Sequence[str]) -> Asked | None:
    """The command line of `predict`, checked; None where it names no machine. Raises ConfigError:
    an unknown setting, machine or model (with the nearest names), a figure that cannot be."""
    root, rest = _composed(words, COMPOSED[1:])
    if not root:
        return None
    own = given(rest, KEYS, "`predict hardware=NAME`, which takes the run as it is")
    return Asked(
        hardware=build(Hardware, root.get("hardware"), "hardware"),
        model=LoaderConfig.of(root["model"], "model") if root.get("model") else None,
        folder=Path(own.get("run_dir") or RUNS / own.get("study", "main")),
        published=Path(own["published"]) if "published" in own else None,
    )


def machine_of(words: Sequence[str]) -> tuple[Hardware | None, list[str]]:
    """The machine that a command line names, None where it names none, and its other words. Raises
    ConfigError."""
    root, rest = _composed(words, ())
    return build(Hardware, root.get("hardware"), "hardware") if root else None, rest


def _composed(words: Sequence[str], also: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """conf/predict_config.yaml under the words of a machine and of these groups."""
    wrong = "figure of a machine; name it with hardware=NAME"
    return of_group("predict_config", words, "hardware", wrong, also)


def shipped() -> list[Hardware]:
    """The machines of conf/hardware."""
    found = (yaml.safe_load(option("hardware", name)) for name in groups()["hardware"])
    return [build(Hardware, values, "hardware") for values in found]
