"""Reading and writing weights: safetensors only, checksummed, shapes checked before anything
runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.documents import read_object
from decoders.kinds import KindError
from decoders.models.checked import DTYPES, checked
from decoders.models.file_kind import require_weights

CHUNK = 1 << 20


def dtype_of(name: str) -> torch.dtype:
    """A dtype by its name, or DecoderError."""
    if name not in DTYPES:
        raise DecoderError(f"dtype {name!r}: expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def read_tensors(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """A safetensors file -> tensors. Pickles are refused unread; so are truncated or altered
    files."""
    if not path.exists():
        raise DecoderError(
            f"no weights at {path}: expected a .safetensors file; `make tiny` trains the "
            "embedded models, a git checkout holds them"
        )
    if path.suffix != ".safetensors":
        raise DecoderError(
            f"{path} is not a .safetensors file; pickled checkpoints (.pt, .bin, .ckpt) "
            "can run code when loaded and are never unpickled here: convert it first"
        )
    require_weights(path)
    if sha256 is not None and (found := sha256_of(path)) != sha256:
        raise DecoderError(
            f"{path} is damaged or was altered: expected SHA-256 {sha256}, found {found}; "
            "restore it from git or train it again with `make tiny`"
        )
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise DecoderError(
            f"{path} cannot be read as safetensors ({error}); it is truncated or another "
            "format: restore it, or train it again with `make tiny`"
        ) from error


def load_into(module: nn.Module, tensors: dict[str, Tensor], origin: str) -> None:
    """Strict load with an error that lists what is missing, unexpected or of another shape, and of
    weights that cannot be (`checked`)."""
    own = module.state_dict()
    missing = sorted(own.keys() - tensors.keys())
    extra = sorted(tensors.keys() - own.keys())
    shapes = [
        f"{n}: expected {tuple(own[n].shape)}, found {tuple(tensors[n].shape)}"
        for n in sorted(own.keys() & tensors.keys())
        if own[n].shape != tensors[n].shape
    ]
    if missing or extra or shapes:
        found = [f"missing {missing[:4]}"] * bool(missing) + [f"unexpected {extra[:4]}"] * bool(
            extra
        )
        raise DecoderError(
            f"{origin} does not fit {type(module).__name__}: "
            + "; ".join(found + shapes[:4])
            + ". Is the configuration beside it the one it was trained with?"
        )
    for name, tensor in tensors.items():
        if own[name].is_floating_point():  # others are counters
            checked(tensor, name, origin)
    module.load_state_dict({n: t.to(own[n].dtype) for n, t in tensors.items()})


def write_weights(module: nn.Module, path: Path, dtype: torch.dtype = torch.bfloat16) -> str:
    """Writes a module's tensors (floats as `dtype`) and returns the file's SHA-256."""
    return write_tensors(module.state_dict(), path, dtype)


def write_tensors(named: dict[str, Tensor], path: Path, dtype: torch.dtype) -> str:
    """Writes tensors (floats as `dtype`) and returns the file's SHA-256."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {
        name: (t.detach().to(dtype) if t.is_floating_point() else t.detach()).contiguous()
        for name, t in named.items()
    }
    try:
        save_file(kept, path)
    except SafetensorError as error:  # its words for what the system refused
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), str(error), str(path)) from error
    return sha256_of(path)


def read_json(path: Path, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The object of a JSON file, see `decoders.documents`. Raises DecoderError."""
    if not path.exists():
        found = path.name if path.parent.is_dir() else "such folder"
        raise DecoderError(
            f"expected {path.name} and the weights in {path.parent}, found no {found}; "
            "give the folder's full path"
        )
    with explained():
        return read_object(path, known)


@contextmanager
def explained() -> Iterator[None]:
    """What a file says wrongly, as DecoderError."""
    try:
        yield
    except KindError as error:
        raise DecoderError(str(error)) from error
