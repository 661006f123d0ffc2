"""Checkpoints as they are published: sharded or single, safetensors or pickled, local or on a hub.

A `Checkpoint` reads one tensor at a time, so that a model is filled with hardly more memory than
its own size. Pickled files (.bin, .pt) are read with ``weights_only=True``: they can hold tensors
and plain containers and cannot run code; a file that needs more is refused.
"""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.documents import CONFIG
from decoders.models.repository import INDEX, WEIGHTS, find, locate, none_of
from decoders.models.weights import (
    checked,
    checked_dtype,
    opened_file,
    read_json,
    read_tensors,
    require_weights,
    sha256_of,
)

PICKLED = (".bin", ".pt", ".pth", ".ckpt")
DAMAGED = (  # what torch says of a damaged file
    pickle.UnpicklingError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, ValueError,
    KeyError, IndexError, TypeError, AttributeError, AssertionError, struct.error,
)  # fmt: skip
INSIDE = ("model", "module", "state_dict")  # where training code puts the tensors of a .pt file


@dataclass
class Checkpoint:
    """Named tensors of one or several files. `config` is the config.json beside them, or empty."""

    path: Path
    config: dict[str, Any]
    index: dict[str, Path]  # tensor name -> file
    pickled: dict[str, Tensor] = field(default_factory=dict, repr=False)
    digests: dict[str, Future[str]] = field(default_factory=dict, repr=False)

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def keys(self) -> set[str]:
        return set(self.index)

    def shape(self, name: str, dims: int | None = None) -> tuple[int, ...]:
        """dims: how many dimensions it must have. Raises DecoderError where there is no such
        tensor, or one of another number of dimensions."""
        if name in self.pickled:
            found = tuple(self.pickled[name].shape)
        else:
            with opened_file(self.file(name)) as file:
                found = tuple(file.get_slice(name).get_shape())
        if dims is not None and (len(found) != dims or 0 in found):
            raise DecoderError(
                f"{self.file(name)}: the tensor {name} is {list(found)}, expected {dims} dimensions"
                "; is it of another model?"
            )
        return found

    def read(self, name: str) -> Tensor:
        """One tensor on the CPU, in the file's dtype, which is floating point (`checked_dtype`).
        The file is mapped for this call only: what was read is not kept in memory."""
        if name in self.pickled:
            return checked_dtype(self.pickled[name], name, self.file(name))
        with opened_file(self.file(name)) as file:
            return checked_dtype(file.get_tensor(name), name, self.file(name))

    def file(self, name: str) -> Path:
        """The file that holds a tensor. Raises DecoderError where none does."""
        if name not in self.index:
            raise DecoderError(f"{self.path} has no tensor {name!r}; it has {some(self.index)}")
        return self.index[name]

    def sha256(self) -> dict[str, str]:
        """File name -> SHA-256 of what was read; computed beside the loading."""
        return {name: digest.result() for name, digest in self.digests.items()}


def some(names: Collection[str], count: int = 4) -> str:
    """The first names and how many there are, for a message."""
    ordered = sorted(names)
    more = f", ... ({len(ordered)} in all)" if len(ordered) > count else ""
    return ", ".join(ordered[:count]) + more


def numbered(checkpoint: Checkpoint, pattern: str) -> int:
    """How many parts a checkpoint numbers from 0 on, such as layers; the pattern's first group is
    the number. Raises DecoderError where there is none, or numbers are left out."""
    matches = (re.fullmatch(pattern, name) for name in checkpoint.index)
    found = {match[1] for match in matches if match}
    if found != set(map(str, range(len(found)))) or not found:
        shown = pattern.replace(r"(\d+)", "N").replace("\\", "").removesuffix(".+")
        raise DecoderError(
            f"{checkpoint.path}: tensors named {shown} must be numbered from 0 on without gaps, "
            f"found {some(found) or 'none'}; are all files of the checkpoint there?"
        )
    return len(found)


def open_checkpoint(
    source: str, files: Sequence[str] = WEIGHTS, what: str = "weights", digests: bool = True
) -> Checkpoint:
    """Opens a local folder or file, or a hub id, which is fetched.

    files: those to look for, best first. what: how messages call it. digests: whether the files are
    hashed. Raises DecoderError: nothing there, offline, a damaged file, a pickle that is more than
    tensors.
    """
    place = locate(source, files, what)
    found = Checkpoint(place, {}, {})
    if (described := found.folder / "config.json").exists():
        found.config = read_json(described, CONFIG)
    for path in _files(place, files, what):
        if path.suffix not in (".safetensors", *PICKLED):
            raise DecoderError(
                f"{path}: expected a file .safetensors, {', '.join(PICKLED)}, found "
                f"{path.suffix or 'no ending'}"
            )
        require_weights(path)
        if path.suffix in PICKLED:
            tensors = read_pickle(path)
            found.pickled |= tensors
            found.index |= dict.fromkeys(tensors, path)
        else:
            with opened_file(path) as file:
                found.index |= dict.fromkeys(file.keys(), path)
    paths = sorted(set(found.index.values())) if digests else []
    pool = ThreadPoolExecutor(1)  # hashing leaves the interpreter free, so nobody waits for it
    found.digests = {path.name: pool.submit(sha256_of, path) for path in paths}
    pool.shutdown(wait=False)
    return found


def _files(place: Path, files: Sequence[str], what: str) -> list[Path]:
    """The files that hold the tensors of a folder, or the file itself."""
    if not place.is_dir():
        return [place]
    found = find(place, files)
    if found is None:
        raise DecoderError(none_of(place, [p.name for p in place.iterdir()], files, what))
    return _shards(place, found.name, what) if found.name.endswith(INDEX) else [found]


def _shards(place: Path, name: str, what: str) -> list[Path]:
    weights = read_json(place / name, {"weight_map": dict[str, str]}).get("weight_map")
    if not weights:
        raise DecoderError(
            f"{place / name} has no `weight_map` from tensors to names of files; download it again"
        )
    shards = sorted({place / file for file in weights.values()})
    missing = [path.name for path in shards if not path.exists()]
    if missing:
        raise DecoderError(
            f"{what}: {place} lacks {len(missing)} of the {len(shards)} shards that {name} lists: "
            f"{some(missing)}; download them into the same folder"
        )
    return shards


def load_pickle(path: Path) -> Any:
    """What a PyTorch file holds: tensors and plain containers. It is the only place that unpickles.

    Raises DecoderError for a damaged file, and for one that would have to run code.
    """
    require_weights(path)
    try:
        mapped = zipfile.is_zipfile(path)  # as torch writes them since 1.6
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except DAMAGED as error:
        if wanted := re.search(r"GLOBAL ([\w.]+)", str(error)):  # the object, as torch names it
            raise DecoderError(
                f"{path} holds more than tensors (it wants {wanted[1]}) and would have to run code "
                "to be read, which is refused. Convert it to safetensors on a machine where you "
                "trust it"
            ) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DecoderError(
            f"{path} cannot be read ({reason}); it is truncated, damaged or another format: "
            "download it again"
        ) from error


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors or PyTorch file, on the CPU, without the prefix `module.`.
    Raises DecoderError."""
    tensors = read_tensors(path) if path.suffix == ".safetensors" else read_pickle(path)
    return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}


def read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a .pt/.bin file, unwrapped from `model`, `module` or `state_dict`."""
    content = load_pickle(path)
    for name in INSIDE:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
            break
    tensors = content if isinstance(content, dict) else {}
    tensors = {k: v for k, v in tensors.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not tensors:
        raise DecoderError(f"{path} holds no named tensors; found {type(content).__name__}")
    return tensors


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

    def pieces(self, checkpoint: Checkpoint) -> list[Tensor]:
        tensors = [checkpoint.read(name) for name in self.names]
        return tensors if self.change is None else self.change(tensors)


def fill(
    module: nn.Module,
    sources: Mapping[str, Source],
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    unused_ok: Callable[[str], bool] = lambda name: False,
    given_elsewhere: Sequence[str] = (),
) -> None:
    """Gives every parameter, and statistic that is stored, of a module built on the meta device its
    values, frozen.

    Each parameter is allocated once, in its final dtype and place, and filled piece by piece.
    Raises DecoderError listing what is missing, left over (`unused_ok` says which leftovers are
    known and harmless) or of another shape. given_elsewhere: parameters that have values already.
    """
    own = {n: p for n, p in module.state_dict().items() if n not in given_elsewhere}
    used = {name for source in sources.values() for name in source.names}
    have = checkpoint.keys()
    missing = sorted(used - have)
    extra = sorted(name for name in have - used if not unused_ok(name))
    odd: dict[str, Collection[str]] = {
        "missing": missing,
        "unexpected": extra,
        "no source for": own.keys() ^ sources.keys(),
    }
    if any(odd.values()):
        parts = [f"{about} {some(names)}" for about, names in odd.items() if names]
        raise DecoderError(
            f"{checkpoint.path} is not in the expected layout for {type(module).__name__}: "
            + "; ".join(parts)
        )
    for name, source in sources.items():
        pieces = _fitting(source, tuple(own[name].shape), checkpoint)
        value = torch.empty(own[name].shape, dtype=dtype, device=device)
        first = 0
        for piece in pieces:
            value[first : first + len(piece)].copy_(piece)
            first += len(piece)
        assign(module, name, value)


def _fitting(source: Source, shape: tuple[int, ...], checkpoint: Checkpoint) -> list[Tensor]:
    """The pieces of a parameter, which together have its shape and are weights (`checked`)."""
    pieces = source.pieces(checkpoint)
    rests = {tuple(p.shape[1:]) for p in pieces}
    found = [list(p.shape) for p in pieces]
    whole = all(p.ndim for p in pieces) and sum(p.shape[0] for p in pieces) == shape[0]
    if not whole or rests != {shape[1:]}:
        raise DecoderError(
            f"{checkpoint.path}: {' + '.join(source.names)} is {' + '.join(map(str, found))}, "
            f"expected {list(shape)}; does config.json belong to these weights?"
        )
    for name, piece in zip(source.names, pieces, strict=True):
        checked(piece, name, checkpoint.file(name))
    return pieces


def assign(module: nn.Module, name: str, value: Tensor) -> None:
    """Makes `value` the parameter of that dotted name, frozen."""
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, nn.Parameter(value, requires_grad=False))
