"""Checkpoints as they are published: sharded or single, safetensors or pickled, local or on a hub.

A `Checkpoint` reads one tensor at a time, so that a model is filled with hardly more memory than
its own size. Pickled files (.bin, .pt) are read with ``weights_only=True``: they can hold tensors
and plain containers and cannot run code; a file that needs more is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.documents import CONFIG
from decoders.models.loading.repository import INDEX, WEIGHTS, find, locate, none_of
from decoders.models.loading.weights import (
    checked,
    checked_dtype,
    opened_file,
    read_json,
    read_pickle,
    require_weights,
    sha256_of,
)

PICKLED = (".bin", ".pt", ".pth", ".ckpt")


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
        """dims: how many dimensions it must have. Raises DecoderError where there is no such
        tensor, or one of another number of dimensions."""
        shape = tuple(self.read(name).shape)
        if dims is not None and (len(shape) != dims or 0 in shape):
            raise DecoderError(
                f"{self.file(name)}: the tensor {name} is {list(shape)}, expected {dims} dimensions"
                "; is it of another model?"
            )
        return shape

    def read(self, name: str) -> Tensor:
        """One tensor on the CPU, in the file's dtype, which is floating point (`checked_dtype`). It
        is mapped: nothing is read of the file before its values are used."""
        path = self.file(name)
        if name in self.pickled:
            return checked_dtype(self.pickled[name], name, path)
        with opened_file(path) as file:
            return checked_dtype(file.get_tensor(name), name, path)

    def file(self, name: str) -> Path:
        """The file that holds a tensor. Raises DecoderError where none does."""
        if name not in self.index:
            raise DecoderError(f"{self.path} has no tensor {name!r}; it has {some(self.index)}")
        return self.index[name]

    def sha256(self) -> dict[str, str]:
        """File name -> SHA-256, of every file with tensors."""
        return {path.name: sha256_of(path) for path in sorted(set(self.index.values()))}


def some(names: Collection[str], count: int = 4) -> str:
    """The first names and how many there are, for a message."""
    ordered = sorted(names)
    more = f", ... ({len(ordered)} in all)" if len(ordered) > count else ""
    return ", ".join(ordered[:count]) + more


def count_parts(checkpoint: Checkpoint, pattern: str) -> int:
    """How many parts a checkpoint numbers from 0 on, such as layers; the pattern's first group is
    the number. Raises DecoderError where there is none, or numbers are left out."""
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
    source: str, files: Sequence[str] = WEIGHTS, what: str = "weights"
) -> Checkpoint:
    """Opens a local folder or file, or a hub id, which is fetched.

    files: those to look for, best first. what: how messages call it. Raises DecoderError: nothing
    there, offline, a damaged file, a pickle that is more than tensors.
    """
    where = locate(source, files, what)
    opened = Checkpoint(where, {}, {})
    if (described := opened.folder / "config.json").exists():
        opened.config = read_json(described, CONFIG)
    for path in _files(where, files, what):
        if path.suffix not in (".safetensors", *PICKLED):
            raise DecoderError(
                f"{path}: expected a file .safetensors, {', '.join(PICKLED)}, found "
                f"{path.suffix or 'no ending'}"
            )
        require_weights(path)
        if path.suffix in PICKLED:
            tensors = read_pickle(path)
            opened.pickled |= tensors
            opened.index |= dict.fromkeys(tensors, path)
        else:
            with opened_file(path) as file:
                opened.index |= dict.fromkeys(file.keys(), path)
    return opened


def _files(where: Path, files: Sequence[str], what: str) -> list[Path]:
    """The files that hold the tensors of a folder, or the file itself."""
    if not where.is_dir():
        return [where]
    file = find(where, files)
    if file is None:
        raise DecoderError(none_of(where, [p.name for p in where.iterdir()], files, what))
    return _shards(where, file.name, what) if file.name.endswith(INDEX) else [file]


def _shards(where: Path, name: str, what: str) -> list[Path]:
    weights = read_json(where / name, {"weight_map": dict[str, str]}).get("weight_map")
    if not weights:
        raise DecoderError(
            f"{where / name} has no `weight_map` from tensors to names of files; download it again"
        )
    shards = sorted({where / file for file in weights.values()})
    missing = [path.name for path in shards if not path.exists()]
    if missing:
        raise DecoderError(
            f"{what}: {where} lacks {len(missing)} of the {len(shards)} shards that {name} lists: "
            f"{some(missing)}; download them into the same folder"
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


@dataclass(frozen=True)
class Source:
    """Where a parameter comes from: these tensors, each as `change` makes it, stacked along dim
    0."""

    names: tuple[str, ...]
    change: Callable[[list[Tensor]], list[Tensor]] | None = None


def fill(
    module: nn.Module,
    sources: Mapping[str, Source],
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    unused_ok: Callable[[str], bool] = lambda name: False,
) -> None:
    """Gives parameters of a module built on the meta device their values, frozen, one at a time.

    Raises DecoderError listing what is missing, left over (`unused_ok` says which leftovers are
    known and harmless) or of another shape.
    """
    used = {name for source in sources.values() for name in source.names}
    missing = sorted(used - checkpoint.index.keys())
    extra = sorted(name for name in checkpoint.index.keys() - used if not unused_ok(name))
    if missing or extra:
        parts = [f"missing {some(missing)}"] * bool(missing)
        parts += [f"unexpected {some(extra)}"] * bool(extra)
        raise DecoderError(
            f"{checkpoint.path} is not in the expected layout for {type(module).__name__}: "
            + "; ".join(parts)
        )
    for name, source in sources.items():
        shape = tuple(module.get_parameter(name).shape)
        assign(module, name, torch.cat(_fitting(source, shape, checkpoint)).to(device, dtype))


def _fitting(source: Source, shape: tuple[int, ...], checkpoint: Checkpoint) -> list[Tensor]:
    """The pieces of a parameter, which together have its shape and are weights (`checked`)."""
    pieces = [checkpoint.read(name) for name in source.names]
    if source.change is not None:
        pieces = source.change(pieces)
    rests = {tuple(p.shape[1:]) for p in pieces}
    shapes = [list(p.shape) for p in pieces]
    whole = all(p.ndim for p in pieces) and sum(p.shape[0] for p in pieces) == shape[0]
    if not whole or rests != {shape[1:]}:
        raise DecoderError(
            f"{checkpoint.path}: {' + '.join(source.names)} is {' + '.join(map(str, shapes))}, "
            f"expected {list(shape)}; does config.json belong to these weights?"
        )
    for name, piece in zip(source.names, pieces, strict=True):
        checked(piece, name, checkpoint.file(name))
    return pieces


def assign(module: nn.Module, name: str, value: Tensor) -> None:
    """Makes `value` the parameter of that dotted name, frozen."""
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, nn.Parameter(value, requires_grad=False))


def empty(kind: Callable[[Any], Any], config: Any) -> Any:
    """A module of class `kind` whose parameters are still to be filled (`fill`): nothing is
    allocated or initialised but its tables, on the CPU."""
    with torch.device("meta"):
        module = kind(config)
    for name, table in module.tables().items():
        module.register_buffer(name, table, persistent=False)
    return module.eval()


def cast(module: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Moves a module with a ``rope`` buffer, which keeps its complex type whatever the weights'."""
    rope = module.rope
    module.rope = torch.empty(0)
    module.to(device=device, dtype=dtype)
    module.rope = rope.to(device)
    return module
