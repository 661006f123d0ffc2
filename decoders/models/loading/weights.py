"""Files of weights: where they are (a file, a folder, a repository of the hub), reading, writing.

Of a repository only the file that a reader can use, its shards and what describes the model are
fetched. A download that failed leaves a file of the right name: an empty one, a pointer of Git LFS,
the page of a login. A quantised file, or one whose tail was never written, has the right names and
shapes and would decode noise for hours. Each is refused with the names of the file and the tensor.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.files import HEAD_BYTES, no_file, placeholder

DTYPE_BY_NAME: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")
}
# A repository, and a revision of it.
HUB_ID_PATTERN = re.compile(r"([\w.-]+/[\w.-]+?)(?:@([\w.-]+))?")
INDEX_ENDING = ".index.json"
WEIGHT_FILES = tuple(
    name + ending
    for name in ("model.safetensors", "pytorch_model.bin")
    for ending in ("", INDEX_ENDING)
)
DESCRIBING_FILES = re.compile(r".*\.json|tokenizer[^/]*|spiece\.model")
UNPICKLING_ERRORS = (  # what torch raises for a damaged file
    *(pickle.UnpicklingError, zipfile.BadZipFile, struct.error, EOFError, OSError, RuntimeError),
    *(ValueError, LookupError, TypeError, AttributeError, AssertionError),
)
PROXY_VARIABLES = ("all_proxy", "https_proxy", "http_proxy")
RESTORE_HINT = "restore it from git, or train it again with `make tiny`"


def dtype_of(name: str) -> torch.dtype:
    """Returns a dtype by its name, or raises DecoderError."""
    if name not in DTYPE_BY_NAME:
        raise DecoderError(f"dtype {name!r}: expected one of {', '.join(DTYPE_BY_NAME)}")
    return DTYPE_BY_NAME[name]


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex. Raises DecoderError where it is there and no file."""
    if kind := no_file(path):
        raise DecoderError(f"{path} is {kind}: expected a file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- where files are ----------------------------------------------------------------------------


def needed_files(names: Collection[str], files: Sequence[str] = WEIGHT_FILES) -> list[str]:
    """Lists the names of a repository's files that are read: the first of `files` that it has, of
    an index its numbered shards too, and what describes the model; [] where it has none."""
    chosen = next((file for file in files if file in names), None)
    if chosen is None:
        return []
    weights = re.escape(chosen)
    if chosen.endswith(INDEX_ENDING):
        weights = rf"[^/]+-\d+-of-\d+{re.escape(Path(chosen.removesuffix(INDEX_ENDING)).suffix)}"
    return [n for n in names if re.fullmatch(weights, n) or DESCRIBING_FILES.fullmatch(n)]


def find(folder: Path, files: Sequence[str] = WEIGHT_FILES) -> Path | None:
    """Returns the first of `files` that a folder has; a broken link counts, and reading it is an
    error."""
    candidates = (folder / file for file in files)
    return next((path for path in candidates if path.is_symlink() or path.exists()), None)


def none_of(where: object, names: Iterable[str], files: Sequence[str], what: str) -> DecoderError:
    """Makes the error for a folder or repository without any of the files."""
    there = ", ".join(sorted(names)[:4])
    return DecoderError(
        f"no {what} in {where}: expected {' or '.join(files)}, found {there or 'nothing'}"
    )


def locate(source: str, files: Sequence[str] = WEIGHT_FILES, what: str = "weights") -> Path:
    """Returns a local path as it is; of a hub id the folder of its snapshot, which is fetched and
    goes on where it was interrupted. what: how messages call it. Raises DecoderError."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    if not HUB_ID_PATTERN.fullmatch(source):
        raise DecoderError(
            f"no {what} at {source!r}: expected a file, a folder with {' or '.join(files)}, or a "
            "hub id such as owner/name or owner/name@commit"
        )
    from huggingface_hub import HfApi, snapshot_download

    name, pinned = repository_of(source)
    with explain_hub(source, files, what):
        try:
            info = HfApi().model_info(name, revision=pinned)
        except hub_errors():  # offline; where that is not all, the next call says why
            revision = pinned or revision_of(name)
            return Path(snapshot_download(name, revision=revision, allow_patterns=[]))
        names = [file.rfilename for file in info.siblings or ()]
        if wanted := needed_files(names, files):
            return Path(snapshot_download(name, revision=pinned, allow_patterns=wanted))
    raise none_of(source, names, files, what)


def repository_of(source: str) -> tuple[str, str | None]:
    """The repository and the revision (a commit, a branch or a tag) of a hub id such as owner/name
    or owner/name@revision."""
    match = HUB_ID_PATTERN.fullmatch(source)
    assert match is not None, "HUB_ID_PATTERN says what a hub id is"
    return match[1], match[2]


def commit_of(folder: Path) -> dict[str, str]:
    """Maps the repository that a folder of the hub's cache is a snapshot of to its commit."""
    name = folder.parent.parent.name
    if folder.parent.name != "snapshots" or not name.startswith("models--"):
        return {}
    return {f"commit of {name.removeprefix('models--').replace('--', '/')}": folder.name}


def main_of(repository: str) -> Path:
    """Returns the file of the hub's cache that says which commit its `main` is."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=repository, repo_type="model")
    return Path(HF_HUB_CACHE) / folder / "refs" / "main"


def revision_of(repository: str) -> str | None:
    """Returns the commit that the hub's cache has as `main`, or None. A copy made by hand may end
    in a newline, which the hub's client takes for a part of the name."""
    main = main_of(repository)
    return main.read_text("utf-8-sig").strip() or None if main.is_file() else None


def hub_errors() -> tuple[type[Exception], ...]:
    """Returns what the hub's client raises: for an answer that is an error, and where there is
    none."""
    from huggingface_hub.errors import HfHubHTTPError

    bases: Any = HfHubHTTPError.__bases__
    return (*bases, OSError)


@contextmanager
def explain_hub(source: str, files: Sequence[str], what: str) -> Iterator[None]:
    """Turns failures of the hub into a DecoderError that says what to do."""
    from huggingface_hub import constants, errors

    names = sorted(name for name in os.environ if name.lower() in PROXY_VARIABLES)
    try:
        for name in names:
            urlsplit(os.environ[name]).port  # noqa: B018 a ValueError where it is no number
        yield
    except (ImportError, ValueError) as error:  # how its client refuses a proxy
        if not re.search(r"proxy|socks|\bport\b", str(error), re.IGNORECASE):
            raise
        raise DecoderError(
            f"{what}: the hub's client cannot use the proxy of {', '.join(names)} ({error}); "
            "correct it, unset it, write socks5:// for socks://, or for SOCKS pip install socksio"
        ) from error
    except hub_errors() as error:  # not there, no access, offline and not in the cache, disk full
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = " ".join(str(error).split()) or type(error).__name__
        advice = f"{reason}). What came is kept: run this again later"
        if constants.HF_HUB_OFFLINE:
            advice = "HF_HUB_OFFLINE is set, and with it nothing is downloaded). Unset it"
        elif isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
            advice = (
                "there is no such repository, or it is for those who accept its terms). Look at "
                f"{constants.ENDPOINT}/{source}, log in here with `hf auth login`, run this again"
            )
        raise DecoderError(
            f"{what}: {source} is neither a local path nor could it be fetched ({advice}; or "
            f"download {' or '.join(files)} and *.json of {source} into a folder on a machine with "
            "access, copy it here and name the folder instead of the hub id"
        ) from error


# ---- reading and writing ------------------------------------------------------------------------


def read_state(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """Reads the tensors of a .safetensors or PyTorch file to the CPU, without the prefix `module.`.
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
            f"{RESTORE_HINT}"
        )
    if path.suffix == ".safetensors":
        with opened_file(path, RESTORE_HINT) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    else:
        tensors = read_pickle(path)
    plain = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    if len(plain) < len(tensors):
        raise DecoderError(f"{path} holds tensors with and without `module.` before the same name")
    return plain


@contextmanager
def opened_file(path: Path, then: str = "download it again") -> Iterator[Any]:
    """Maps a safetensors file. then: what to do where it, or what is read of it, is damaged, which
    raises DecoderError."""
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
        head = file.read(HEAD_BYTES)
    if kind := placeholder(head, path.stat().st_size):
        raise DecoderError(f"{path} cannot be read: it is {kind}")


def load_pickle(path: Path) -> Any:
    """Reads a PyTorch file of tensors and plain containers. It is the only place that unpickles.
    Raises DecoderError for a damaged file, and for one that would have to run code."""
    require_weights(path)
    try:
        mapped = zipfile.is_zipfile(path)  # as torch writes them since 1.6
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except UNPICKLING_ERRORS as error:
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
    """Reads the tensors of a .pt or .bin file, out of `model`, `module` or `state_dict` where
    training code put them there."""
    content = load_pickle(path)
    for name in ("model", "module", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
            break
    tensors = content if isinstance(content, dict) else {}
    tensors = {k: v for k, v in tensors.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not tensors:
        raise DecoderError(f"{path} holds no named tensors; found {type(content).__name__}")
    return tensors


def load_into(module: nn.Module, tensors: dict[str, Tensor], origin: str) -> None:
    """Loads all tensors of a module. Raises DecoderError that lists what is missing, unexpected or
    of another shape, and for weights that `check_values` refuses."""
    state = module.state_dict()
    missing = sorted(state.keys() - tensors.keys())
    extra = sorted(tensors.keys() - state.keys())
    wrong = [f"missing {missing[:4]}"] * bool(missing) + [f"unexpected {extra[:4]}"] * bool(extra)
    shapes = [
        f"{n}: expected {tuple(state[n].shape)}, found {tuple(tensors[n].shape)}"
        for n in sorted(state.keys() & tensors.keys())
        if state[n].shape != tensors[n].shape
    ]
    if wrong := wrong + shapes[:4]:
        raise DecoderError(
            f"{origin} does not fit {type(module).__name__}: {'; '.join(wrong)}. Are the settings "
            "those that it was trained with?"
        )
    for name, tensor in tensors.items():
        if state[name].is_floating_point():  # others are counters
            check_values(tensor, name, origin)
    # From float16 by float64, as PyTorch's own way fails where /proc/cpuinfo may not be read.
    wide = {n: t.double() if t.dtype == torch.float16 else t for n, t in tensors.items()}
    module.load_state_dict({n: t.to(state[n].dtype) for n, t in wide.items()})


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
    except SafetensorError as error:  # how it reports what the system refused
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), str(error), str(path)) from error
    return sha256_of(path)


def kept_features(path: Path, compute: Callable[[], Tensor]) -> Tensor:
    """Features that are computed once and kept in a file, which others may read or write meanwhile.
    Raises DecoderError where it is damaged."""
    if path.exists():
        with opened_file(path, "delete it") as file:
            kept: Tensor = file.get_tensor("features")
            return kept
    features, part = compute(), path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write_tensors({"features": features}, part, features.dtype)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return features


def check_values(tensor: Tensor, name: str, origin: Path | str) -> None:
    """Raises DecoderError for a tensor that `check_dtype` refuses, one without entries, for NaN or
    infinity, and for a matrix of zeros (a bias may be zero)."""
    check_dtype(tensor, name, origin)
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


def check_dtype(tensor: Tensor, name: str, origin: Path | str) -> None:
    """Raises DecoderError for a tensor that is not dense floating point of a known width: quantised
    (int8, fp8), bool, complex, sparse."""
    if tensor.layout != torch.strided or tensor.dtype not in DTYPE_BY_NAME.values():
        kind, known = str(tensor.dtype).removeprefix("torch."), " or ".join(DTYPE_BY_NAME)
        sparse = "" if tensor.layout == torch.strided else ", sparse"
        raise DecoderError(
            f"{origin}: the tensor {name} is {kind}{sparse}, expected {known}; quantised and "
            "packed weights are not read: use the release in bfloat16 or float32"
        )
