"""Files of weights: what they really are, what their tensors may be, reading and writing our own.

A download that failed leaves a file of the right name: an empty one, a pointer of Git LFS, the HTML
page of a login. A quantised file, or one whose tail was never written, has the right names and
shapes and would decode noise for hours. Each is refused with the names of the file and the tensor.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.documents import HEAD, no_file, placeholder, read_object

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")
}

DAMAGED = (  # what torch says of a damaged file
    pickle.UnpicklingError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, ValueError,
    KeyError, IndexError, TypeError, AttributeError, AssertionError, struct.error,
)  # fmt: skip
INSIDE = ("model", "module", "state_dict")  # where training code puts the tensors of a .pt file


def dtype_of(name: str) -> torch.dtype:
    """A dtype by its name, or DecoderError."""
    if name not in DTYPES:
        raise DecoderError(f"dtype {name!r}: expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_state(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of a .safetensors or PyTorch file, on the CPU, without the prefix `module.`.
    sha256: what its SHA-256 must be. Raises DecoderError."""
    if not path.exists():
        raise DecoderError(
            f"no weights at {path}: expected a .safetensors file; `make tiny` trains the "
            "embedded models, a git checkout holds them"
        )
    require_weights(path)
    if sha256 is not None and (digest := sha256_of(path)) != sha256:
        raise DecoderError(
            f"{path} is damaged or was altered: expected SHA-256 {sha256}, found {digest}; "
            "restore it from git or train it again with `make tiny`"
        )
    if path.suffix == ".safetensors":
        with opened_file(path, "restore it, or train it again with `make tiny`") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    else:
        tensors = read_pickle(path)
    return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}


@contextmanager
def opened_file(path: Path, then: str = "download it again") -> Iterator[Any]:
    """A safetensors file, mapped. then: what to do where it, or what is read of it, is damaged,
    which raises DecoderError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise DecoderError(
            f"{path} cannot be read as safetensors ({error}); it is truncated or another format: "
            f"{then}"
        ) from error


def require_weights(path: Path) -> None:
    """Raises DecoderError where a path is no file, or a file that stands for another."""
    if not path.is_file():
        raise DecoderError(f"{path} is {no_file(path) or 'not there'}: expected a file of weights")
    with path.open("rb") as file:
        head = file.read(HEAD)
    if kind := placeholder(head, path.stat().st_size):
        raise DecoderError(f"{path} cannot be read: it is {kind}")


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


def load_into(module: nn.Module, tensors: dict[str, Tensor], origin: str) -> None:
    """Strict load with an error that lists what is missing, unexpected or of another shape, and of
    weights that cannot be (`checked`)."""
    state = module.state_dict()
    missing = sorted(state.keys() - tensors.keys())
    extra = sorted(tensors.keys() - state.keys())
    shapes = [
        f"{n}: expected {tuple(state[n].shape)}, found {tuple(tensors[n].shape)}"
        for n in sorted(state.keys() & tensors.keys())
        if state[n].shape != tensors[n].shape
    ]
    if missing or extra or shapes:
        wrong = [f"missing {missing[:4]}"] * bool(missing)
        wrong += [f"unexpected {extra[:4]}"] * bool(extra)
        raise DecoderError(
            f"{origin} does not fit {type(module).__name__}: "
            + "; ".join(wrong + shapes[:4])
            + ". Are the settings those that it was trained with?"
        )
    for name, tensor in tensors.items():
        if state[name].is_floating_point():  # others are counters
            checked(tensor, name, origin)
    module.load_state_dict({n: t.to(state[n].dtype) for n, t in tensors.items()})


def write_tensors(
    named: Mapping[str, Tensor], path: Path, dtype: torch.dtype = torch.bfloat16
) -> str:
    """Writes tensors (floats as `dtype`) and returns the file's SHA-256."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (t.detach().to(dtype) if t.is_floating_point() else t.detach()).contiguous()
        for name, t in named.items()
    }
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # its words for what the system refused
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), str(error), str(path)) from error
    return sha256_of(path)


def read_json(path: Path, kinds: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The object of a JSON file, see `decoders.documents`. Raises DecoderError."""
    if not path.exists():
        absent = path.name if path.parent.is_dir() else "such folder"
        raise DecoderError(
            f"expected {path.name} and the weights in {path.parent}, found no {absent}; "
            "give the folder's full path"
        )
    return read_object(path, kinds)


# ---- what tensors may be ------------------------------------------------------------------------


def checked(tensor: Tensor, name: str, origin: Path | str) -> Tensor:
    """The tensor itself. Raises DecoderError for another dtype than `checked_dtype` allows, for no
    entries at all, for NaN or infinity, and for a matrix of zeros (a bias may be zero)."""
    checked_dtype(tensor, name, origin)
    if not tensor.numel():
        raise DecoderError(f"{origin}: the tensor {name} is empty, {list(tensor.shape)}")
    low, high = (float(value) for value in tensor.detach().aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DecoderError(
            f"{origin}: the tensor {name} holds NaN or infinity; the file is damaged or its "
            "training diverged: use another copy or an earlier one"
        )
    if tensor.ndim > 1 and low == high == 0 and not name.endswith("bias"):
        raise DecoderError(
            f"{origin}: the tensor {name} {list(tensor.shape)} holds only zeros; the file was not "
            "written to its end, or was never trained: download or write it again"
        )
    return tensor


def checked_dtype(tensor: Tensor, name: str, origin: Path | str) -> Tensor:
    """The tensor itself. Raises DecoderError where it is not dense floating point of a known
    width: quantised (int8, fp8), bool, complex, sparse."""
    if tensor.layout != torch.strided or tensor.dtype not in DTYPES.values():
        kind = str(tensor.dtype).removeprefix("torch.")
        sparse = "" if tensor.layout == torch.strided else ", sparse"
        raise DecoderError(
            f"{origin}: the tensor {name} is {kind}{sparse}, expected {' or '.join(DTYPES)}; "
            "quantised and packed weights are not read: use the release in bfloat16 or float32"
        )
    return tensor
