"""Checks of what parts return: shapes, dtypes and devices, no values, so that nothing waits for the
device and a step that is compiled or captured pays nothing. `misplaced` reads values, for the gate.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decoders.api import Draft, DraftSession
from decoders.distribution import largest
from decoders.errors import DecoderError


class AnswerError(DecoderError):
    """A part returned a wrong shape or dtype."""


def require_floats(part: object, method: str, words: str, value: Any, shape: Any) -> None:
    """Raises AnswerError where what a method of `part` returned is no floating tensor of `shape`;
    words: what it is."""
    if isinstance(value, Tensor) and value.shape == shape and value.is_floating_point():
        return
    raise AnswerError(
        f"{class_path(part)}.{method} must return {words} = {[*shape]} of a floating dtype, found "
        f"{describe(value)}"
    )


def class_path(part: object) -> str:
    """An object's class by its dotted path."""
    return f"{type(part).__module__}.{type(part).__qualname__}"


def describe(value: Any) -> str:
    """Shape and dtype of a tensor, the class of anything else."""
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else class_path(value)


def require_logits(session: DraftSession, logits: Tensor, *shape: int) -> Tensor:
    """The logits of `advance`, shape [B, V], or of `expand`, [B, w, V]; AnswerError where they are
    something else."""
    method, dims = ("advance", "[B, V]") if len(shape) == 2 else ("expand", "[B, w, V]")
    require_floats(session, method, f"logits {dims}", logits, shape)
    if logits.device != session.root_code.device:
        raise AnswerError(
            f"{class_path(session)} must return logits on {session.root_code.device}, found "
            f"{logits.device}"
        )
    return logits


def likeliest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest codes of every node, by scores [..., V], see `largest`. DecoderError
    where the codebook has fewer."""
    if count > scores.shape[-1]:
        raise DecoderError(
            f"the tree takes the {count} likeliest codes of a node, and the codebook has "
            f"{scores.shape[-1]}; choose a tree whose nodes have fewer children, as tree=chain"
        )
    return largest(scores, count)


def require_root(session: DraftSession, length: Tensor) -> None:
    """Raises AnswerError where the last committed codes are not [B] int64, on the device of
    `length` [B]."""
    root, batch = session.root_code, len(length)
    if not isinstance(root, Tensor) or root.shape != (batch,) or root.dtype != torch.int64:
        raise AnswerError(
            f"{class_path(session)}.root_code must be the last committed codes, [B] = [{batch}] "
            f"int64, found {describe(root)}"
        )
    if root.device != length.device:
        raise AnswerError(
            f"{class_path(session)}.root_code must be on {length.device}, found {root.device}"
        )


def misplaced(draft: Draft) -> str:
    """What of a draft breaks the contract of `decoders.api.Draft`: a tensor of another shape or
    dtype, or the first of its `children`, with row and node, and what was expected; "" for
    nothing."""
    batch, size = draft.codes.shape
    for name, more in {"parents": "", "depth": "", "children": ", K", "q": ", V"}.items():
        value = getattr(draft, name)
        if value is None:  # q of children that are chosen
            continue
        kind = "float32" if name == "q" else "int64"
        is_of_kind = value.is_floating_point() if name == "q" else value.dtype == torch.int64
        if value.shape[:2] == (batch, size) and value.dim() == 2 + bool(more) and is_of_kind:
            continue
        short = value.dim() > 1 and value.shape[1] < size
        return (
            f"{name} is {describe(value)}; expected [B, N + 1{more}] = [{batch}, {size}{more}] "
            f"{kind}, an entry for each node of `codes`, from 0 to {size - 1}"
            + (f": node {value.shape[1]} has none" if short else "")
        )
    children = draft.children
    row, node, rank = ((children < 0) | (children >= size)).nonzero(as_tuple=True)
    if len(row):
        child = children[row[0], node[0], rank[0]]
        where = f"children[{row[0]}, {node[0]}, {rank[0]}]"
        return f"{where} is {child}; expected a node from 1 to {size - 1}, or 0 for none"
    row, node, rank = children.nonzero(as_tuple=True)
    child = children[row, node, rank]
    for words, found, expected in (
        ("whose entry of `parents` is", draft.parents[row, child], node),
        ("whose entry of `depth` is", draft.depth[row, child], draft.depth[row, node] + 1),
    ):
        for i in found.ne(expected).nonzero()[:1, 0].tolist():
            where = f"children[{row[i]}, {node[i]}, {rank[i]}] is node {child[i]}"
            return f"{where}, {words} {found[i]}; expected {expected[i]}"
    for i in (child <= node).nonzero()[:1, 0].tolist():
        return f"node {child[i]} is a child of node {node[i]}; expected parents before children"
    return ""
