"""All tensors of a run, however deep in its objects: what a captured step reads and writes by
address.

Why a search and not a registry: a plug-in's drafter keeps its state as it likes, and should run as
a CUDA graph without knowing of one. Modules and the model are left out: weights do not change while
decoding, and the model's execution holds the graphs' own memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel, Piece, RefillError
from decoders.cache import KVCache

Slot = tuple[Any, str | int]  # an owner and the name or index under which it holds a tensor


def tensor_slots(root: Any) -> Iterator[tuple[str, Slot, Tensor]]:
    """(path, slot, tensor) of every tensor below `root`: attributes of objects, items of lists,
    tuples and dicts. An object is visited once."""
    return (leaf for leaf in _leaves(root) if isinstance(leaf[2], Tensor))


def _leaves(root: Any) -> Iterator[tuple[str, Slot, Any]]:
    """Path -> value, of whatever has nothing below it."""
    visited: set[int] = set()
    stack: list[tuple[str, Any]] = [] if root is None else [("", root)]
    while stack:
        path, owner = stack.pop()
        if id(owner) in visited:
            continue
        visited.add(id(owner))
        for name, value in _members(owner):
            if isinstance(value, Tensor) or not _is_container(value):
                yield f"{path}.{name}", (owner, name), value
            else:
                stack.append((f"{path}.{name}", value))


def _members(owner: Any) -> list[tuple[str | int, Any]]:
    if isinstance(owner, dict):
        return [(name, value) for name, value in owner.items() if isinstance(name, str | int)]
    if isinstance(owner, list | tuple):
        return [*enumerate(owner)]
    return [*vars(owner).items()]


def _is_container(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return True
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, nn.Module | ImageModel | type)
        and not callable(value)
    )


def tensors(root: Any) -> dict[str, Tensor]:
    """The tensors below `root` by path."""
    return {path: tensor for path, _, tensor in tensor_slots(root)}


def put_row(state: Any, row: int, one: Any) -> None:
    """Puts a new image into a row of a run. `one`: a run of that image alone, which has just begun.

    Writes in place, as an execution may hold the addresses. It replaces a plug-in's tensors too, if
    they have one dimension of B images or of R = G * B rows. Raises RefillError for other state
    that has changed since the run began: it cannot be told which part of it belongs to the image.
    """
    batch = len(state.trace.codes)
    run_tensors, other = list(tensor_slots(state)), list(tensor_slots(one))
    if [path for path, _, _ in run_tensors] != [path for path, _, _ in other]:
        odd = sorted({path for path, _, _ in run_tensors} ^ {path for path, _, _ in other})
        raise _unrefillable(f"{', '.join(odd[:3])} is there after some steps alone, or before")
    caches: tuple[str, ...] = ()
    for (path, (owner, name), old), (_, (its, _), new) in zip(run_tensors, other, strict=True):
        if isinstance(owner, KVCache) and name == "data":
            if its is not owner:  # of one row, the image has begun where it goes on
                owner.take(range(row, its.rows * batch, batch), its)
            caches += (path.removesuffix("data"),)  # all else below it is made of its data
        elif old is not new and not path.startswith(caches):
            _put(path, old, new, batch, row)
    new_values = numbers(one)
    for path, value in numbers(state).items():
        fresh = new_values.get(path)
        if value not in (fresh, fresh * batch if isinstance(fresh, int) else fresh):
            raise _unrefillable(
                f"{path} is {value!r} by now, and {fresh!r} of an image that begins"
            )


def _put(path: str, old: Tensor, new: Tensor, batch: int, row: int) -> None:
    """Writes `new`, of a single image, into its place in `old`."""
    pairs = [*enumerate(zip(old.shape, new.shape, strict=False))]
    odd = [(dim, many, one) for dim, (many, one) in pairs if many != one]
    if old.ndim == new.ndim and len(odd) == 1 and odd[0][1] == odd[0][2] * batch:
        dim, _, copies = odd[0]
        old.unflatten(dim, (copies, batch)).select(dim + 1, row).copy_(new)
    elif old.shape == new.shape and batch == 1:
        old.copy_(new)
    elif old.shape != new.shape or not torch.equal(old, new):
        raise _unrefillable(
            f"{path} is {list(old.shape)}, of one image alone {list(new.shape)}, and its values "
            "have changed"
        )


def numbers(state: Any) -> dict[str, int | float | str]:
    """The Python numbers and texts in a run's session and in the verifier's state, by path. `calls`
    counts those of the whole batch and is no state, so it is left out."""
    values = {
        f".{part}{path}": value
        for part in ("session", "verifier_state")
        for path, (owner, _), value in _leaves(vars(state)[part])
        if isinstance(value, int | float | str) and not isinstance(owner, KVCache)
    }
    return {path: value for path, value in values.items() if not path.endswith(".calls")}


def _unrefillable(why: str) -> RefillError:
    return RefillError(
        f"this decoder cannot go on with the next image in a row that is done: {why}. Expected "
        "tensors with one dimension of B images or R rows, in place from the start. Time it in "
        "batches that are decoded as a whole (latency.requests=null)"
    )


def signature_of(value: Any) -> Any:
    """What compiled code depends on: the shapes, strides and dtypes of tensors, and Python numbers.
    value: tensors, tuples, lists, dicts and plain objects such as a draft. Code compiled for one
    value runs another of the same signature."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return tuple([signature_of(one) for one in value])
    members = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return tuple([(name, signature_of(one)) for name, one in members.items()])


def snapshot(root: Any) -> dict[str, Tensor]:
    """The tensors below `root` with those that `fill` reads copied, but for a cache's, the largest
    of all: nothing sees its slots before they are written again once the rest is put back."""
    owners = {path: owner for path, (owner, _), _ in tensor_slots(root)}
    run_tensors = tensors(root)
    copied = [path for path in without_views(run_tensors) if not isinstance(owners[path], KVCache)]
    return run_tensors | {path: run_tensors[path].clone() for path in copied}


def without_views(run_tensors: dict[str, Tensor]) -> list[str]:
    """The paths without views of other tensors among them: a cache keeps views of itself for every
    way of reading it, and is copied once."""
    largest: dict[int, tuple[str, int, int]] = {}  # by memory: path, first and last byte
    ranges: dict[str, tuple[int, int, int]] = {}
    for path, tensor in run_tensors.items():
        memory, first = tensor.untyped_storage().data_ptr(), tensor.data_ptr()
        steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        last = first + (steps + 1) * tensor.element_size() if tensor.numel() else first
        ranges[path] = memory, first, last
        _, begin, end = largest.get(memory, ("", 0, 0))
        if tensor.is_contiguous() and last - first > end - begin:
            largest[memory] = path, first, last

    def is_view(path: str) -> bool:
        memory, first, last = ranges[path]
        owner, begin, end = largest.get(memory, (path, first, last))
        return owner != path and begin <= first and last <= end

    return [path for path in run_tensors if not is_view(path)]


def fill(root: Any, values: dict[str, Tensor]) -> None:
    """Copies values into the tensors below `root`, in place. Raises DecoderError where the two do
    not have the same tensors."""
    run_tensors = tensors(root)
    if run_tensors.keys() != values.keys():
        odd = sorted(run_tensors.keys() ^ values.keys())
        raise DecoderError(
            f"a captured step expects the state that it was captured on; these differ: {odd[:5]}"
        )
    for path in without_views(run_tensors):
        tensor, other = run_tensors[path], values[path]
        if other is tensor:
            continue
        if other.shape != tensor.shape or other.dtype != tensor.dtype:
            raise DecoderError(
                f"{path} of a captured step is {tuple(tensor.shape)} {tensor.dtype}, found "
                f"{tuple(other.shape)} {other.dtype}; shapes of a step must be static"
            )
        if tensor.data_ptr() != other.data_ptr():
            tensor.copy_(other)


def rebind(root: Any, before: dict[str, Tensor]) -> None:
    """Undoes the new bindings of a step. Where it put a new tensor into an attribute or item, the
    values are copied into the old tensor and that is put back, so that the next step finds its
    input at the same address. Raises DecoderError for another shape, and for a tuple's item.

    All are read before any is written: a new tensor may be a view of an old one.
    """
    changed = [
        (slot, before[path], tensor)
        for path, slot, tensor in tensor_slots(root)
        if path in before and before[path] is not tensor
    ]
    for (owner, name), old, new in changed:
        if (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
            raise DecoderError(
                f"a step bound {type(owner).__name__}.{name}, {tuple(old.shape)} {old.dtype} on "
                f"{old.device}, anew as {tuple(new.shape)} {new.dtype} on {new.device}; a captured "
                "step needs it in its final shape and place from the start"
            )
    copies = [(slot, old, new.clone()) for slot, old, new in changed]
    for (owner, name), old, new in copies:
        old.copy_(new)
        if isinstance(owner, tuple):
            raise DecoderError(
                "a step of static shape may not replace a tensor inside a tuple; keep it in a list"
            )
        items: Any = owner
        if isinstance(owner, dict | list):
            items[name] = old
        else:
            setattr(owner, str(name), old)


def step_in_place(pieces: Sequence[Piece], state: Any) -> list[Any]:
    """A step that leaves every tensor of the state where it was; returns what each piece
    returned."""
    before = tensors(state)
    carries: list[Any] = []
    for _, piece in pieces:
        carries.append(piece(state, *(carries[-1] if carries else ())))
    rebind(state, before)
    return carries
