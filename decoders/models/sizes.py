"""Sizes of models by formula, from shapes alone, and the shapes of the released models (METHODS 6).

Why formulas and not a loaded model: a plan must answer in seconds on a machine without the weights,
so there is no torch here. D width, F feed-forward, n layers, V codes, T embedding rows, L places of
an image, P prefix, G query heads that share a head of keys and values, all as in METHODS 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Shape:
    """A decoder-only target. tokens: embedding rows where the codes are part of a larger vocabulary
    (0: they are all of it); side: pixels of an image, 0 where no picture is made.
    head_layers: 2 for a head with a hidden layer of D units (Janus). group: G, query heads that
    share a head of keys and values (2305.13245); heads: of queries, 0 where the loader knows them
    by the width."""

    vocab: int
    width: int
    layers: int
    ffn: int
    length: int
    prefix: int
    side: int
    tokens: int = 0
    text_width: int = 0
    classes: int = 0
    qk_norm: bool = False
    head_layers: int = 1
    group: int = 1
    heads: int = 0

    @classmethod
    def of(cls, cfg: Any) -> Shape:
        """The shape of a loaded target's configuration (`decoders.models.shape`, or one with the
        same names). Raises AttributeError where it lacks one of them."""
        same = ("vocab", "width", "layers", "ffn", "length", "prefix", "tokens", "qk_norm", "group")
        given = {name: getattr(cfg, name) for name in (*same, "heads")}
        return cls(side=0, head_layers=2 if cfg.head == "mlp" else 1, **given)

    @property
    def grid(self) -> int:
        """Codes a side of the image."""
        return isqrt(self.length)

    @property
    def row_end(self) -> bool:
        """Whether a structural code closes each row of the grid."""
        return self.length != self.grid**2

    @property
    def kv_width(self) -> int:
        """D / G: numbers of a key or a value, which the cache holds."""
        return self.width // self.group

    @property
    def products(self) -> int:
        """A layer's matrices: 2 D^2 + 2 D^2 / G (attention) + 3 D F (SwiGLU)."""
        return self.width * (2 * self.width + 2 * self.kv_width + 3 * self.ffn)

    @property
    def layer(self) -> int:
        """A layer: its matrices + 2 D (norms) + 2 D + 2 D / G (scales and shifts of queries and
        keys, where they are normalised)."""
        norms = 2 * (self.width + self.kv_width) if self.qk_norm else 0
        return self.products + 2 * self.width + norms

    @property
    def conditioning(self) -> int:
        """Caption MLP F_t D + D^2 and unconditional embedding P F_t; or classes (+ 1) x D."""
        if self.text_width:
            mlp = self.text_width * self.width + self.width**2
            return mlp + self.prefix * self.text_width
        return (self.classes + 1) * self.width if self.classes else 0

    @property
    def body(self) -> int:
        """All but the output head: n layers, embedding T D, final norm D, conditioning."""
        rows = self.tokens or self.vocab
        return self.blocks + rows * self.width + self.width + self.conditioning

    @property
    def stored(self) -> int:
        """Parameters of the published file: its head has a row for every token."""
        return self.body + (self.tokens or self.vocab) * self.width

    @property
    def loaded(self) -> int:
        """Parameters in memory: the head keeps the rows of the V codes only."""
        return self.body + self.head

    @property
    def blocks(self) -> int:
        """The n layers: what every forward reads, with the final norm and the head."""
        return self.layers * self.layer

    @property
    def head(self) -> int:
        """The output head's rows of the V codes; with a hidden layer D^2 + D more, and V biases."""
        hidden = self.width**2 + self.width + self.vocab if self.head_layers == 2 else 0
        return self.vocab * self.width + hidden

    @property
    def drafter(self) -> int:
        """An EAGLE drafter: embedding T D, fc 2 D^2 + D, a layer's matrices and D (METHODS 3)."""
        width = self.width
        return (self.tokens or self.vocab) * width + 2 * width**2 + width + self.products + width


@dataclass(frozen=True)
class VQShape:
    """A VQGAN tokenizer: its parameters, counted in the network itself (tests/bench/cost), numbers
    of a code's latent, and the channels of its level at full resolution."""

    params: int
    latent: int
    channels: int = 128


@dataclass(frozen=True)
class T5Shape:
    """Parameters of a T5 1.1 encoder, and of its published file: decoder and output head too."""

    encoder: int
    stored: int


CLASSES = {  # LlamaGen's sizes: (width, layers, ffn) (2406.06525, table 7)
    "B": (768, 12, 2048),
    "L": (1024, 24, 2816),
    "XL": (1280, 36, 3584),
    "XXL": (1536, 48, 4096),
    "3B": (3200, 24, 8704),
}


def class_conditional(size: str, grid: int = 24) -> Shape:
    """LlamaGen's class-conditional model of a size in CLASSES, grid x grid codes."""
    width, layers, ffn = CLASSES[size]
    return Shape(
        vocab=16384, width=width, layers=layers, ffn=ffn, length=grid**2, prefix=1, side=16 * grid,
        classes=1000,
    )  # fmt: skip


LLAMAGEN_256 = replace(class_conditional("XL", 16), classes=0, prefix=120, text_width=2048)
LLAMAGEN_512 = replace(LLAMAGEN_256, length=32**2, side=512)
ANOLE = Shape(
    vocab=8192, width=4096, layers=32, ffn=11008, length=1024, prefix=128, side=512, tokens=65536,
    qk_norm=True, heads=32,
)  # fmt: skip
# 48 x 48 codes and a structural code that ends each row.
LUMINA = replace(ANOLE, vocab=8193, length=48 * 49, side=768)
# The codes' embedding stands below the 102,400 words, in one table.
JANUS = Shape(
    vocab=16384, width=4096, layers=30, ffn=11008, length=576, prefix=128, side=384,
    tokens=102400 + 16384, head_layers=2, heads=32,
)  # fmt: skip
EMU3 = Shape(
    vocab=32769, width=4096, layers=32, ffn=14336, length=90 * 91, prefix=160, side=720,
    tokens=184622, group=4, heads=32,
)  # fmt: skip
LLAMAGEN_VQ = VQShape(71_883_403, latent=8)
CHAMELEON_VQ = VQShape(68_718_467, latent=256)
# Without convolutions over time and spatial norms: a thousandth less than it has.
EMU3_VQ = VQShape(270_504_239, latent=4, channels=256)
FLAN_T5_XL = T5Shape(encoder=1_223_527_424, stored=2_849_757_184)
# Every released model: target and tokenizer.
RELEASED = {
    "llamagen_xl_256": (LLAMAGEN_256, LLAMAGEN_VQ),
    "llamagen_xl_512": (LLAMAGEN_512, LLAMAGEN_VQ),
    "llamagen_c2i": (class_conditional("XL"), LLAMAGEN_VQ),
    "llamagen_3b": (class_conditional("3B"), LLAMAGEN_VQ),
    "anole_7b": (ANOLE, CHAMELEON_VQ),
    "lumina_mgpt_7b_768": (LUMINA, CHAMELEON_VQ),
    "janus_pro_7b": (JANUS, LLAMAGEN_VQ),
    "emu3_gen": (EMU3, EMU3_VQ),
}
