"""Checkpoints as they are published: sharded or single, safetensors or pickled, local or on a hub.

A `Checkpoint` reads one tensor at a time, so that a model is filled with hardly more memory than
its own size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.files import read_object
from decoders.kinds import Amount, Positive, Size, Within
from decoders.models.loading.weights import (
    INDEX_ENDING,
    WEIGHT_FILES,
    check_dtype,
    check_values,
    commit_of,
    find,
    locate,
    none_of,
    opened_file,
    read_pickle,
    require_weights,
    sha256_of,
)

PICKLED_ENDINGS = (".bin", ".pt", ".pth", ".ckpt")
# What config.json must say where it says it, of whatever family: the rest is not read.
CONFIG_KINDS: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "block_size"), Size),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "caption_dim"), Size),
    "num_hidden_layers": Annotated[int, Within(1, 10_000)],
    **dict.fromkeys(("rms_norm_eps", "norm_eps", "rope_base", "rope_theta"), Positive),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), dict[str, Any]),
    **dict.fromkeys(("swin_norm", "tie_word_embeddings"), bool),
    **dict.fromkeys(("hidden_act", "input_type", "model_type"), str),
    "vocabulary_map": dict[str, Amount],
}


@dataclass
class Checkpoint:
    """Named tensors of one or several files. `config` is the config.json beside them, or empty."""

    path: Path
    config: dict[str, Any]
    index: dict[str, Path]  # tensor name -> file
    pickled: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def shape(self, name: str, dims: int | None = None) -> tuple[int, ...]:
        """Returns a tensor's shape; dims: how many dimensions it must have. Raises DecoderError
        where it has others, or there is no such tensor."""
        shape = tuple(self.read(name).shape)
        if dims is not None and (len(shape) != dims or 0 in shape):
            raise DecoderError(
                f"{self.file(name)}: the tensor {name} is {list(shape)}, expected {dims} dimensions"
                "; is it of another model?"
            )
        return shape

    def read(self, name: str) -> Tensor:
        """Maps one tensor on the CPU, in the file's dtype, which is floating point (`check_dtype`):
        nothing is read of the file before its values are used."""
        path = self.file(name)
        if name in self.pickled:
            tensor = self.pickled[name]
        else:
            with opened_file(path) as file:
                tensor = file.get_tensor(name)
        check_dtype(tensor, name, path)
        return tensor

    def file(self, name: str) -> Path:
        """Returns the file that holds a tensor. Raises DecoderError where none does."""
        if name not in self.index:
            raise DecoderError(f"{self.path} has no tensor {name!r}; it has {some(self.index)}")
        return self.index[name]

    def sha256(self) -> dict[str, str]:
        """Maps the name of every file with tensors to its SHA-256, and a repository of the hub to
        its commit."""
        digests = {path.name: sha256_of(path) for path in sorted(set(self.index.values()))}
        return digests | commit_of(self.folder)


def some(names: Collection[str]) -> str:
    """Names the first ones and how many there are, for a message."""
    ordered = sorted(names)
    more = f", ... ({len(ordered)} in all)" if len(ordered) > 4 else ""
    return ", ".join(ordered[:4]) + more


def count_parts(checkpoint: Checkpoint, pattern: str) -> int:
    """Counts the parts that a checkpoint numbers from 0 on, such as layers; the pattern's first
    group is the number. Raises DecoderError where there is none, or numbers are left out."""
    matches = (re.fullmatch(pattern, name) for name in checkpoint.index)
    numbers = {match[1] for match in matches if match}
    if numbers != set(map(str, range(len(numbers)))) or not numbers:
        names = pattern.replace(r"(\d+)", "N").replace("\\", "").removesuffix(".+")
        raise DecoderError(
            f"{checkpoint.path}: tensors named {names} must be numbered from 0 on without gaps, "
            f"found {some(numbers) or 'none'}; are all files of the checkpoint there?"
        )
    return len(numbers)


def open_checkpoint(
    source: str, files: Sequence[str] = WEIGHT_FILES, what: str = "weights"
) -> Checkpoint:
    """Opens a local folder or file, or a hub id, which is fetched. files: those to look for, best
    first. what: how messages call it. Raises DecoderError: nothing there, offline, a damaged file,
    a pickle that is more than tensors."""
    where = locate(source, files, what)
    opened = Checkpoint(where, {}, {})
    if (described := opened.folder / "config.json").exists():
        opened.config = read_object(described, CONFIG_KINDS)
    paths = [where]
    if where.is_dir():
        file = find(where, files)
        if file is None:
            raise none_of(where, [path.name for path in where.iterdir()], files, what)
        paths = _shards(file, what) if file.name.endswith(INDEX_ENDING) else [file]
    for path in paths:
        if path.suffix not in (".safetensors", *PICKLED_ENDINGS):
            raise DecoderError(
                f"{path}: expected a file .safetensors, {', '.join(PICKLED_ENDINGS)}, found "
                f"{path.suffix or 'no ending'}"
            )
        require_weights(path)
        if path.suffix in PICKLED_ENDINGS:
            opened.pickled |= (tensors := read_pickle(path))
            names = [*tensors]
        else:
            with opened_file(path) as mapped:
                names = [*mapped.keys()]
        if twice := opened.index.keys() & names:
            other = opened.index[min(twice)]
            raise DecoderError(
                f"{what}: both {other} and {path.name} hold {some(twice)}; one of them is old: "
                "download index and shards again, or remove what is old from its shard"
            )
        opened.index |= dict.fromkeys(names, path)
    return opened


def _shards(index: Path, what: str) -> list[Path]:
    """Returns the files that an index lists. Raises DecoderError where one is missing."""
    weights = read_object(index, {"weight_map": dict[str, str]}).get("weight_map")
    if not weights:
        raise DecoderError(
            f"{index} has no `weight_map` from tensors to names of files; download it again"
        )
    shards = sorted({index.parent / file for file in weights.values()})
    missing = [path.name for path in shards if not path.exists()]
    if missing:
        raise DecoderError(
            f"{what}: {index.parent} lacks {len(missing)} of the {len(shards)} shards that "
            f"{index.name} lists: {some(missing)}; download them into the same folder"
        )
    return shards


def require_side(checkpoint: Checkpoint, name: str, side: int, grid: int) -> None:
    """Raises DecoderError where config.json says that images have another side in codes than
    `grid`; name: the entry that says so."""
    if side != grid:
        raise DecoderError(
            f"{checkpoint.path} draws {side} x {side} codes ({name} of config.json), which "
            f"contradicts model.grid={grid}; set model.grid={side}, or name another checkpoint"
        )


# ---- into a module ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """Where a parameter comes from: these tensors, each as `change` makes it, stacked along dim
    0."""

    names: tuple[str, ...]
    change: Callable[[list[Tensor]], list[Tensor]] | None = None


def empty(kind: Callable[[Any], Any], config: Any) -> Any:
    """Makes a module of class `kind` whose parameters are still to be read (`read_parameters`):
    nothing is allocated or initialised but its tables, on the CPU."""
    with torch.device("meta"):
        module = kind(config)
    for name, table in module.tables().items():
        module.register_buffer(name, table, persistent=False)
    return module.eval()


def read_parameters(
    module: nn.Module,
    origins: Mapping[str, Origin],
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    unused_ok: Callable[[str], bool] = lambda name: False,
) -> None:
    """Reads the parameters of a module built on the meta device, frozen, one at a time. Raises
    DecoderError listing what is missing, left over (`unused_ok` says which leftovers are known and
    harmless) or of another shape."""
    used = {name for origin in origins.values() for name in origin.names}
    missing = sorted(used - checkpoint.index.keys())
    extra = sorted(name for name in checkpoint.index.keys() - used if not unused_ok(name))
    if missing or extra:
        parts = [f"missing {some(missing)}"] * bool(missing)
        parts += [f"unexpected {some(extra)}"] * bool(extra)
        raise DecoderError(
            f"{checkpoint.path} is not in the expected layout for {type(module).__name__}: "
            + "; ".join(parts)
        )
    for name, origin in origins.items():
        shape = tuple(module.get_parameter(name).shape)
        pieces = [checkpoint.read(part) for part in origin.names]
        if origin.change is not None:
            pieces = origin.change(pieces)
        whole = all(p.ndim for p in pieces) and sum(len(p) for p in pieces) == shape[0]
        if not whole or {tuple(p.shape[1:]) for p in pieces} != {shape[1:]}:
            shapes = " + ".join(str(list(p.shape)) for p in pieces)
            raise DecoderError(
                f"{checkpoint.path}: {' + '.join(origin.names)} is {shapes}, expected "
                f"{list(shape)}; does config.json belong to these weights?"
            )
        for part, piece in zip(origin.names, pieces, strict=True):
            check_values(piece, part, checkpoint.file(part))
        assign(module, name, torch.cat(pieces).to(device, dtype))


def assign(module: nn.Module, name: str, value: Tensor) -> None:
    """Makes `value` the parameter of that dotted name, frozen."""
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, nn.Parameter(value, requires_grad=False))


def cast(module: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Moves a module with a ``rope`` buffer, which keeps its complex type whatever the weights'."""
    rope = module.rope
    module.rope = torch.empty(0)
    module.to(device=device, dtype=dtype)
    module.rope = rope.to(device)
    return module
