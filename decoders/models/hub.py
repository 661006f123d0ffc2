"""Llama decoders of the hub (Chameleon, Janus, Emu3) into `Transformer`: one loader, a table each.

They draw with tokens of their own vocabulary, 1-D rotation, and differ in a few fields
(`Family`) and in where a release keeps its parts (`Layout`). Of a head only the rows of codes are
kept, since nothing else is drawn here. What this code does not compute is refused before gigabytes
are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from reprlib import repr as brief
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, ImageModel, Sampling
from decoders.kinds import Positive, fitted
from decoders.models.checkpoint import (
    Checkpoint,
    Source,
    fill,
    open_checkpoint,
    require_side,
    some,
)
from decoders.models.layouts import LLAMA, Names, harmless, layer_sources
from decoders.models.parts import pad_head
from decoders.models.shape import TransformerConfig
from decoders.models.text.prompts import (
    TOKENIZER,
    PromptEncoder,
    Template,
    Vocabulary,
    read_vocabulary,
)
from decoders.models.transformer import Transformer, cast, empty
from decoders.models.vq.pictures import Pictures, load_pictures
from decoders.models.vq.tokenizer import NoTokenizer
from decoders.models.weights import dtype_of

NEEDED = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size",
)  # fmt: skip

# Of a prefix that is no tokens the parameters, under the names of LlamaGen's release.
CONDITIONING = {
    "caption": ("cap_proj.fc1.weight", "cap_proj.fc2.weight", "uncond_embedding"),
    "class": ("embedding_table.weight",),
}


@dataclass(frozen=True)
class Layout:
    """Where a release keeps its parts. words: the prefix of the language model. head: its matrix,
    or the names of two layers. pictures: the VQ tokenizer. elsewhere: prefixes of parts that only
    see pictures or write text. codes, aligner: a table of the codes' own, and the two layers that
    make embeddings of it (Janus). embedding, layer: names of the embedding and of a layer's
    tensors, where they are not Llama's."""

    words: str
    head: tuple[str, ...]
    pictures: Pictures
    elsewhere: tuple[str, ...] = ()
    codes: str = ""
    aligner: tuple[str, ...] = ()
    embedding: str = ""
    layer: Names = field(default_factory=lambda: LLAMA)

    def __post_init__(self) -> None:
        usual = f"{self.words}embed_tokens.weight"
        object.__setattr__(self, "embedding", self.embedding or usual)

    @property
    def mark(self) -> str:
        """The tensor by which the layout is known."""
        return self.codes or self.embedding


@dataclass(frozen=True)
class Family:
    """What a family of models is. layouts: of its releases, best first. template: of prompts, by
    the grid. code: a code's name in the vocabulary, its first group the number. row_end: the token
    that closes a row of the grid. sections: of config.json that describe the language model, else
    all of it; usual: sizes that a section leaves out. places, rope_base, norm_eps stand in where
    the file says nothing. sides: where config.json says how large images are (section, then names),
    and the image's side in codes by what it says, best first. fixed: fields of `TransformerConfig`.
    tokenizers: files of the text tokenizer, best first."""

    name: str
    layouts: tuple[Layout, ...]
    template: Callable[[int], Template]
    code: re.Pattern[str] | None = None
    row_end: str | None = None
    sections: tuple[str, ...] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)
    places: int = 4096
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    sides: Mapping[str, Callable[[Any], int]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    tokenizers: tuple[str, ...] = (TOKENIZER,)


def layout_of(opened: Checkpoint, name: str, layouts: Sequence[Layout]) -> Layout:
    """Raises DecoderError where the checkpoint is not of the family of this name."""
    for layout in layouts:
        if layout.mark in opened.index:
            return layout
    marks = " or ".join(layout.mark for layout in layouts)
    raise DecoderError(
        f"{opened.path} is no {name} checkpoint: expected {marks}, found {some(opened.keys())}"
    )


def config_of(
    family: Family, opened: Checkpoint, codes: int, grid: int, prefix: int
) -> TransformerConfig:
    """The target's shape from config.json; codes: V, the row end included. Raises DecoderError
    where the checkpoint is another family's, or a variant that is not computed here."""
    given = _text_config(opened, family)
    heads = int(given["num_attention_heads"])
    shared = int(given.get("num_key_value_heads") or heads)  # heads of keys and values
    _refuse(opened, given, heads % shared, family)
    rope = given.get("rope_parameters") or {}
    base = rope.get("rope_theta", given.get("rope_theta", family.rope_base))
    base = fitted(f"{opened.path}: config.json: rope_theta", base, Positive)
    own = any(layout.codes for layout in family.layouts)  # the codes stand below the words
    found = TransformerConfig(
        vocab=codes,
        tokens=int(given["vocab_size"]) + codes * own,
        grid=grid,
        prefix=prefix,
        width=int(given["hidden_size"]),
        layers=int(given["num_hidden_layers"]),
        heads=heads,
        group=heads // shared,
        ffn=int(given["intermediate_size"]),
        norm_eps=float(given.get("rms_norm_eps", family.norm_eps)),
        conditioning="tokens",
        positions="line",
        prefix_rope="identity",
        rope_base=base,
        row_end=family.row_end is not None,
        **family.fixed,
    )
    places = int(given.get("max_position_embeddings", family.places))
    if found.prefix + found.length > places:
        raise DecoderError(
            f"a prompt of {found.prefix} and an image of {found.length} tokens are more than the "
            f"model's {places} positions; lower model.prefix or model.grid"
        )
    return found


def require_grid(family: Family, opened: Checkpoint, grid: int) -> None:
    """Raises DecoderError where config.json says that the model's images have another side."""
    for place, side in family.sides.items():
        found: Any = opened.config
        for name in place.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if found is None:
            continue
        try:
            own = side(found)
        except (TypeError, ValueError, AttributeError) as error:
            raise DecoderError(
                f"{opened.path}: config.json: {place} is {brief(found)}, expected the size of the "
                f"images of {family.name}; download it again"
            ) from error
        return require_side(opened, place, own, grid)


def _text_config(opened: Checkpoint, family: Family) -> dict[str, Any]:
    """The part of config.json that describes the language model."""
    given = next((opened.config[s] for s in family.sections if s in opened.config), opened.config)
    if given is not opened.config and isinstance(given, dict):
        given = {**family.usual, **given}
    missing = [name for name in NEEDED if name not in given] if isinstance(given, dict) else NEEDED
    if missing:
        raise DecoderError(
            f"{opened.path} is no {family.name} checkpoint: its config.json must say "
            f"{some(missing)}"
        )
    return dict(given)


def _refuse(opened: Checkpoint, given: Mapping[str, Any], rest: int, family: Family) -> None:
    """DecoderError for what this code does not compute; rest: heads that share with no others."""
    rope = given.get("rope_parameters") or {}
    scaling = given.get("rope_scaling") or {}
    kinds = {rope.get("rope_type"), scaling.get("rope_type"), scaling.get("type")}
    whole = (given.get("head_dim") or 0) * given["num_attention_heads"]
    reasons = {
        "swin_norm=true (Chameleon-34B): norms after attention and feed-forward": given.get(
            "swin_norm"
        ),
        "heads that are no multiple of those of keys": rest,
        "a scaled rotation": kinds - {None, "default"},
        "another activation than silu": given.get("hidden_act", "silu") != "silu",
        "biases in attention": given.get("attention_bias"),
        "heads of another width than hidden_size / num_attention_heads": (
            whole not in (0, given["hidden_size"])
        ),
    }
    found = [name for name, there in reasons.items() if there]
    if found:
        raise DecoderError(
            f"{opened.path}: config.json has {'; '.join(found)}, which is not computed here; "
            f"{family.name} has none of it"
        )


def sources(
    cfg: TransformerConfig, layout: Layout, tokens: Tensor | None, head: str
) -> dict[str, Source]:
    """Every parameter of the target; tokens [V] are the rows of the matrix `head` that are kept,
    None: all."""
    embedding = Source((layout.embedding,))
    if layout.codes:
        aligner = [f"{part}.{kind}" for part in layout.aligner for kind in ("weight", "bias")]
        embedding = Source((layout.embedding, layout.codes, *aligner), _aligned)
    out = {
        "tok_embeddings.weight": embedding,
        "norm.weight": Source((f"{layout.words}norm.weight",)),
    }
    for name in CONDITIONING.get(cfg.conditioning, ()):
        out[f"cls_embedding.{name}"] = Source((f"{layout.words}cls_embedding.{name}",))
    if cfg.head == "mlp":
        for own, theirs in zip(("hidden", "codes"), layout.head, strict=True):
            for kind in ("weight", "bias"):
                out[f"output.{own}.{kind}"] = Source((f"{theirs}.{kind}",))
    else:
        rows = None if tokens is None else partial(_head_rows, tokens)
        out["output.weight"] = Source((head,), rows)
    for n in range(cfg.layers):
        theirs = f"{layout.words}layers.{n}."
        out |= layer_sources(f"layers.{n}.", theirs, cfg, names=layout.layer)
    return out


def _aligned(given: list[Tensor]) -> list[Tensor]:
    """The words' table, and under it the codes through the aligner: fc2 gelu(fc1 e)."""
    words, *rest = given
    table, first, first_bias, second, second_bias = (tensor.float() for tensor in rest)
    return [words, F.linear(F.gelu(F.linear(table, first, first_bias)), second, second_bias)]


def _head_rows(tokens: Tensor, given: list[Tensor]) -> list[Tensor]:
    """The head's rows of these tokens [V, D]. Raises DecoderError where it has fewer."""
    (head,) = given
    if head.ndim != 2 or len(head) <= int(tokens.max()):
        raise DecoderError(
            f"the head is {list(head.shape)}, a code has token {int(tokens.max())}; do the "
            "vocabulary and the weights belong together?"
        )
    return [head[tokens]]


def load_target(
    opened: Checkpoint,
    layout: Layout,
    cfg: TransformerConfig,
    tokens: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Transformer:
    """The target of an opened checkpoint; tokens [V] int64: of the codes, where they are part of a
    larger vocabulary."""
    if tokens is not None and int(tokens.max()) >= cfg.tokens:
        raise DecoderError(
            f"{opened.path}: the vocabulary names token {int(tokens.max())}, config.json has "
            f"vocab_size {cfg.tokens}; do they belong together?"
        )
    module: Transformer = empty(Transformer, cfg)
    if tokens is not None:
        module.code_tokens = tokens
    head = layout.head[0]
    if opened.config.get("tie_word_embeddings") and head not in opened.index:
        head = layout.embedding

    def unused(name: str) -> bool:
        return name.startswith(layout.elsewhere) or harmless(name)

    fill(module, sources(cfg, layout, tokens, head), opened, dtype, device, unused)
    if tokens is not None:
        pad_head(module)
    return cast(module, device, dtype)


def load_model(
    family: Family,
    name: str,
    checkpoint: str,
    grid: int,
    device: str = "cpu",
    dtype: str = "bfloat16",
    prefix: int = 128,
    tokenizer: str | None = None,
    text: str | None = None,
    drafters: dict[str, str] | None = None,
    cfg: float = 3.0,
    top_k: int = 0,
) -> ImageModel:
    """Target, VQ tokenizer and prompts as tokens of a checkpoint; the families' modules give it
    their usual settings.

    checkpoint: folder or hub id. grid: image side in codes. prefix: tokens of the longest prompt,
    its template included. tokenizer: folder, file or hub id of the VQ tokenizer; None: in or next
    to the checkpoint, else no pictures. text: the same of the text tokenizer. drafters: names for
    drafter checkpoints. cfg, top_k: the usual sampling. Raises DecoderError.
    """
    place, kind = torch.device(device), dtype_of(dtype)
    opened = open_checkpoint(checkpoint, what=f"{family.name} target")
    layout, template = layout_of(opened, family.name, family.layouts), family.template(grid)
    require_grid(family, opened, grid)
    if family.code is None:
        count = opened.shape(layout.codes, 2)[0]
        shape = config_of(family, opened, count, grid, prefix)
        tokens = torch.arange(shape.tokens - count, shape.tokens)
    else:
        vocabulary = read_vocabulary(opened, text, family.tokenizers)
        tokens = code_tokens(family, vocabulary, template)
        shape = config_of(family, opened, len(tokens), grid, prefix)
    row_end = shape.row_end
    pictures, digests = load_pictures(layout.pictures, opened, tokenizer, grid, place, row_end)
    whole = not isinstance(pictures, NoTokenizer) or pictures.table is not None
    if whole and len(pictures.codebook) != len(tokens):
        raise DecoderError(
            f"{opened.path} names {len(tokens) - row_end} codes, its VQ tokenizer has "
            f"{len(pictures.codebook) - row_end}; do they belong together?"
        )
    return ImageModel(
        name=name,
        target=load_target(opened, layout, shape, tokens, kind, place),
        text=PromptEncoder(
            opened, template, prefix, text, place, family.tokenizers, tokens.tolist()
        ),
        tokenizer=pictures,
        sampling=Sampling(cfg=cfg, top_k=min(top_k, len(tokens))),
        device=place,
        dtype=kind,
        weights_sha256=opened.sha256() | digests,
        drafters=dict(drafters or {}),
    )


def code_tokens(family: Family, vocabulary: Vocabulary, template: Template) -> Tensor:
    """[V] int64: the token of every code; the row end's is the last."""
    assert family.code is not None
    for name in (*template.before, *template.after) if template.uncond else ():
        vocabulary.id(name)  # an image size that the model has no token of
    tokens = vocabulary.code_tokens(family.code)
    if family.row_end is None:
        return tokens
    return torch.cat([tokens, torch.tensor([vocabulary.id(family.row_end)])])
