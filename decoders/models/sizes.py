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
    share a head of keys and values (2305.13245)."""

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

    @classmethod
    def of(cls, cfg: Any) -> Shape:
        """The shape of a loaded target's configuration (`decoders.models.shape`, or one with the
        same names). Raises AttributeError where it lacks one of vocab, width, layers, ffn, length
        and prefix."""
        return cls(
            vocab=cfg.vocab,
            width=cfg.width,
            layers=cfg.layers,
            ffn=cfg.ffn,
            length=cfg.length,
            prefix=cfg.prefix,
            side=0,
            tokens=getattr(cfg, "tokens", 0),
            qk_norm=getattr(cfg, "qk_norm", False),
            head_layers=2 if getattr(cfg, "head", "linear") == "mlp" else 1,
            group=getattr(cfg, "group", 1),
        )

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
    """A VQGAN tokenizer: encoder and decoder, `blocks` residual blocks a level (one more in the
    decoder), attention in the middle and, where `attention`, at the lowest resolution."""

    codes: int
    dim: int
    z_channels: int
    channels: int = 128
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    blocks: int = 2
    attention: bool = True

    @property
    def params(self) -> int:
        quant = conv(self.z_channels, self.dim, 1) + conv(self.dim, self.z_channels, 1)
        return self.codes * self.dim + quant + self._encoder() + self._decoder()

    def _encoder(self) -> int:
        width, total = self.channels, conv(3, self.channels)
        for at, mult in enumerate(self.ch_mult):
            last = at == len(self.ch_mult) - 1
            out = self.channels * mult
            total += self._level(width, out, self.blocks, last) + (0 if last else conv(out, out))
            width = out
        return total + middle(width) + 2 * width + conv(width, self.z_channels)

    def _decoder(self) -> int:
        width = self.channels * self.ch_mult[-1]
        total = conv(self.z_channels, width) + middle(width)
        for at in reversed(range(len(self.ch_mult))):
            out = self.channels * self.ch_mult[at]
            last = at == len(self.ch_mult) - 1
            total += self._level(width, out, self.blocks + 1, last) + (conv(out, out) if at else 0)
            width = out
        return total + 2 * width + conv(width, 3)

    def _level(self, width: int, out: int, blocks: int, lowest: bool) -> int:
        res = residual(width, out) + (blocks - 1) * residual(out, out)
        return res + (blocks * attention(out) if lowest and self.attention else 0)


def conv(width: int, out: int, kernel: int = 3) -> int:
    """Parameters of a convolution with bias."""
    return kernel**2 * width * out + out


def residual(width: int, out: int) -> int:
    """Two norms, two 3x3 convolutions, a 1x1 shortcut where the width changes."""
    shortcut = conv(width, out, 1) if width != out else 0
    return 2 * width + conv(width, out) + 2 * out + conv(out, out) + shortcut


def attention(width: int) -> int:
    """A norm and four 1x1 convolutions."""
    return 2 * width + 4 * conv(width, width, 1)


def middle(width: int) -> int:
    return 2 * residual(width, width) + attention(width)


@dataclass(frozen=True)
class T5Shape:
    """A T5 1.1 text encoder-decoder with gated feed-forward and an untied head."""

    vocab: int
    width: int
    inner: int
    ffn: int
    layers: int
    heads: int
    buckets: int = 32

    @property
    def encoder(self) -> int:
        """Embedding, relative-position table, n (4 D I + 3 D F + 2 D) and the final norm."""
        layer = 4 * self.width * self.inner + 3 * self.width * self.ffn + 2 * self.width
        return self.vocab * self.width + self._stack(layer)

    @property
    def stored(self) -> int:
        """The published file: encoder, decoder (cross-attention too) and output head."""
        layer = 8 * self.width * self.inner + 3 * self.width * self.ffn + 3 * self.width
        return self.encoder + self._stack(layer) + self.vocab * self.width

    def _stack(self, layer: int) -> int:
        return self.layers * layer + self.buckets * self.heads + self.width


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
    qk_norm=True,
)  # fmt: skip
# 48 x 48 codes and a structural code that ends each row.
LUMINA = replace(ANOLE, vocab=8193, length=48 * 49, side=768)
# The codes' embedding stands below the 102,400 words, in one table.
JANUS = Shape(
    vocab=16384, width=4096, layers=30, ffn=11008, length=576, prefix=128, side=384,
    tokens=102400 + 16384, head_layers=2,
)  # fmt: skip
EMU3 = Shape(
    vocab=32769, width=4096, layers=32, ffn=14336, length=90 * 91, prefix=160, side=720,
    tokens=184622, group=4,
)  # fmt: skip
LLAMAGEN_VQ = VQShape(codes=16384, dim=8, z_channels=256)
CHAMELEON_VQ = VQShape(codes=8192, dim=256, z_channels=256, attention=False)
# Emu3's, without its convolutions over time and spatial norms: a thousandth less than it has.
EMU3_VQ = VQShape(codes=32768, dim=4, z_channels=4, channels=256, ch_mult=(1, 2, 2, 4))
FLAN_T5_XL = T5Shape(vocab=32128, width=2048, inner=2048, ffn=5120, layers=24, heads=32)
