"""What a study costs, by formula: parameters, bytes and GPU memory, from shapes alone.

Why formulas and not a loaded model: a dry run must answer in seconds on a machine without the
weights. D width, F feed-forward, n layers, V codes, T embedding rows, L places of an image, P
prefix, R = G x B rows (G = 2 with guidance), N nodes of a draft tree, all as in METHODS 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
CONTEXT = 0.5e9  # bytes of the CUDA context, kernels and allocator slack


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
        """The n layers: what every forward reads beside the final norm and the head."""
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


@dataclass(frozen=True)
class Load:
    """One call of a decoder. nodes, depth: of its draft tree, 0 for AR; session: session nodes."""

    batch: int
    guidance_rows: int
    nodes: int = 0
    depth: int = 0
    session: int = 0

    @property
    def rows(self) -> int:
        return self.guidance_rows * self.batch


def cache_bytes(shape: Shape, load: Load, size: int) -> float:
    """Keys and values: n 2 R S D / G x size, S = P + L + N + 1; and the drafter's, one layer of
    S = P + L + 2 depth + session + 1."""
    slots = shape.prefix + shape.length + load.nodes + 1
    target = shape.layers * 2 * load.rows * slots * shape.kv_width * size
    if not load.nodes:
        return target
    slots = shape.prefix + shape.length + load.depth + load.session + 1
    return target + 2 * load.rows * slots * shape.kv_width * size


def logit_bytes(shape: Shape, load: Load, size: int) -> float:
    """R (N + 1) V in the model's dtype, and four float32 arrays of B (N + 1) V: guided logits, p, q
    and one in the making (filters and residuals)."""
    places = load.nodes + 1
    return places * shape.vocab * (load.rows * size + 4 * 4 * load.batch)


def returned_bytes(shape: Shape, load: Load) -> float:
    """Of these, what a step returns: p and q, float32 [B, N + 1, V]. AR returns no law."""
    return 2 * 4.0 * load.batch * (load.nodes + 1) * shape.vocab if load.nodes else 0.0


def picture_bytes(shape: Shape, vq: VQShape, batch: int) -> float:
    """Three float32 feature maps of the tokenizer's narrowest level at full resolution."""
    return 3 * 4 * batch * shape.side**2 * vq.channels


def peak_bytes(shape: Shape, vq: VQShape | None, weights: float, load: Load, size: int) -> float:
    """Weights + the larger of decoding (caches, logits) and making pictures (they follow each
    other) + the context."""
    decoding = cache_bytes(shape, load, size) + logit_bytes(shape, load, size)
    pictures = picture_bytes(shape, vq, load.batch) if vq else 0.0
    return weights + max(decoding, pictures) + CONTEXT
