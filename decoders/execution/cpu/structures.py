"""What Python hands to the CPU kernel: its C structures, field by field as in the headers.

A field is set from a number, another structure or a tensor. Of a tensor the kernel gets the
address, and the structure holds it for as long. Sizes are compared with the library's own when it
is loaded (`library.library`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decoders.api import DecoderError, Sampling

KINDS: dict[str, Any] = {
    "long": ctypes.c_long,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "pointer": ctypes.c_void_p,
}


def fields(declared: str) -> list[tuple[str, Any]]:
    """Of kinds, each with the names of its fields, as C declares them."""
    lines = [line.split() for line in declared.split(";")]
    return [(name, KINDS[kind]) for kind, *names in lines for name in names]


class Struct(ctypes.Structure):
    """Base of all."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    def __init__(self, *ready: Any, **values: Any) -> None:
        """ready: fields in their order, as ctypes takes them; what they point to is the caller's to
        hold."""
        super().__init__(*ready)
        self.held: dict[str, Any] = {}  # by field what it points to
        self.set(**values)

    def set(self, **values: Any) -> None:
        """Sets fields; those that are not named stay."""
        for name, value in values.items():
            setattr(self, name, value.data_ptr() if isinstance(value, Tensor) else value)
            if isinstance(value, Tensor | Struct):
                self.held[name] = value


class LayerWeights(Struct):
    _fields_ = fields("pointer attention_norm wqkv wo ffn_norm w13 w2")


class Forward(Struct):
    _fields_ = fields(
        """long rows queries width heads ffn layers slots; float eps; int threads;
    pointer weights final_norm input codes; long embedded; pointer output cache rope; long places;
    pointer place; long place_row place_query; pointer slot; long slot_row slot_query;
    pointer mask; long mask_row mask_query; pointer scratch; int products; long times"""
    )


class Filter(Struct):
    _fields_ = fields("float temperature top_p; long top_k")

    @staticmethod
    def of(sampling: Sampling) -> Filter:
        return Filter(temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k)


class Rule(Struct):
    _fields_ = fields("pointer table; long row; int kind; float value; long k released")


class Expand(Struct):
    _fields_ = fields(
        """Forward layer; long batch nodes; pointer embedding; long embedded;
    pointer tokens fc fc_bias head; long vocab; float cfg;
    pointer features seen root_slot mixed raw logits"""
    )


class Advance(Struct):
    _fields_ = fields(
        """Expand drafter; pointer prefix; long first told; pointer hidden codes count start
    root_code order inputs pairs"""
    )


class Grow(Struct):
    _fields_ = fields(
        """Expand drafter; pointer root_logits root_code; Filter filter;
    long size children levels; pointer left codes child"""
    )


class GrowStatic(Struct):
    _fields_ = fields(
        """Grow base; pointer parents first parent shape uniform; long places row;
    pointer position q"""
    )


class GrowDynamic(Struct):
    _fields_ = fields(
        """Grow base; long candidates; pointer code above score front session best order parents
    depth ancestry expected"""
    )


class NextCode(Struct):
    _fields_ = fields(
        """Forward body; long count batch prefix vocab; pointer tokens head; float cfg;
    Filter filter; pointer uniform; long uniform_row uniform_place uniforms;
    pointer codes place chosen; long recorded;
    pointer bad raw logits p"""
    )


class Nodes(Struct):
    _fields_ = fields(
        """long batch count children; pointer codes parents; long parents_row; pointer level;
    long level_row; pointer child; long child_row by_leaf"""
    )


class Verify(Struct):
    _fields_ = fields(
        """Forward layer; Nodes tree; long prefix; pointer length seen; long seen_row;
    pointer tokens head; long vocab; float cfg; pointer raw logits"""
    )


class Settle(Struct):
    _fields_ = fields(
        """Nodes tree; long copies vocab depth; pointer q logits; Filter filter; Rule rule;
    pointer uniform; long places slots accept_slot target_slot image prefix; pointer length hidden;
    long state; pointer cache; long lines heads capacity head;
    pointer told_hidden told_codes told_count told_start codes kind step at moved bound; long width;
    pointer accepted steps bad drafter_calls; long draft_calls;
    pointer path count p work; long room; int threads"""
    )


def require(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The tensor, contiguous; DecoderError where it is of another shape or dtype, or not on the
    CPU."""
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype or tensor.device.type != "cpu":
        raise DecoderError(
            f"the CPU kernel expected {name} {list(shape)} in {dtype} on the CPU, found "
            f"{list(tensor.shape)} in {tensor.dtype} on {tensor.device}"
        )
    return tensor.contiguous()
