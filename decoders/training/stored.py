"""States that an earlier training kept: data without a source.

Why apart from the ring: nothing is computed here, and the target is needed for its head alone.
"""

from __future__ import annotations

from pathlib import Path

from decoders.api import DecoderError
from decoders.kinds import Count
from decoders.models.transformer import Transformer
from decoders.models.weights import read_json
from decoders.training.shards import MANIFEST, drawn
from decoders.training.sources import held_out_split
from decoders.training.states import States, differing, read_row, stack, unpack

KEPT = {"shard": Count, "paired": bool}


class Stored:
    """States that an earlier run kept (``data.keep=true``), drawn at random from all its shards but
    the held-out ones.

    Raises DecoderError: no shards there, states of another target, or single rows where the loss
    wants pairs.
    """

    def __init__(
        self, target: Transformer, path: str, batch: int, paired: bool, held_out: float, seed: int
    ) -> None:
        folder = Path(path)
        self.files = sorted(folder.glob("shard_*.safetensors"))
        if len(self.files) < 2 or not (folder / MANIFEST).exists():
            raise DecoderError(
                f"{folder} holds {len(self.files)} shards, at least 2 and {MANIFEST} are needed; "
                "write them with data.keep=true data.folder=..."
            )
        found = read_json(folder / MANIFEST, KEPT)
        sizes = {"length": target.length, "prefix": target.prefix, "width": target.width}
        if wrong := differing(found, {"paired": paired, **sizes}):
            raise DecoderError(f"the shards of {folder} do not fit: {wrong}")
        self.size, self.batch, self.seed = found.get("shard", 1), batch, seed
        self.device = target.output.weight.device
        parts = held_out_split(len(self.files), held_out, seed)
        self.parts = dict(zip(("train", "valid"), parts, strict=True))

    @property
    def valid(self) -> int:
        return self.size * len(self.parts["valid"])

    def prepare(self, step: int) -> None:
        """Nothing to compute."""

    def seen(self, steps: int) -> int:
        """How many different images so many steps have drawn, at most."""
        return min(steps * self.batch, self.size * len(self.parts["train"]))

    def at(self, step: int, first: int, count: int) -> States:
        """The states of images first..first+count-1 of the batch of a step."""
        images = self.size * len(self.parts["train"])
        picks = drawn(self.seed, step, self.batch, images)[first : first + count]
        return self._gather("train", picks)

    def held_out(self, first: int, count: int) -> States:
        """The states of held-out images."""
        return self._gather("valid", list(range(first, first + count)))

    def _gather(self, split: str, picks: list[int]) -> States:
        part = self.parts[split]
        rows = [(self.files[part[p // self.size]], p % self.size) for p in picks]
        return unpack(stack([read_row(path, row) for path, row in rows]), self.device)
