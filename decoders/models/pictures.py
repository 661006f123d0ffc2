"""Image tokenizers, and how those of released models are read.

LlamaGen's network (2406.06525) serves Chameleon too (2405.09818), which has no attention in the
coarsest level and a codebook that is not normalised. Chameleon's files have the names of
taming-transformers (2012.09841), and so have Janus's in transformers; transformers' own Chameleon
has no decoder (Anole's conversion carries one).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError, ImageTokenizer
from decoders.models.llamagen_vq import LlamaGenVQ, VQConfig, to_unit
from decoders.models.loading.checkpoint import (
    Checkpoint,
    Origin,
    count_parts,
    open_checkpoint,
    read_parameters,
    some,
)
from decoders.models.loading.layouts import harmless
from decoders.models.loading.weights import WEIGHT_FILES, check_values, find
from decoders.models.precision import full_float32

logger = logging.getLogger(__name__)
PICTURES_AT_ONCE = 8  # that a GPU decodes
ROW_END_DIAMETERS = 100.0  # the row end's distance, in diameters of the codebook


def decode_pictures(tokenizer: Any, codes: Tensor) -> Tensor:
    """Codes [B, L] -> images [B, 3, H, W] float32 in [0, 1]: one by one on the CPU, on a GPU
    `PICTURES_AT_ONCE` together, the last ones filled up with copies. In a batch of another size
    sums run in another order, and a picture would depend on how many were decoded with it."""
    if codes.device.type == "cpu" or len(codes) == 1:
        return torch.cat([*map(tokenizer.decode, codes.split(1))])
    filled = torch.cat([codes, codes[-1:].expand(-len(codes) % PICTURES_AT_ONCE, -1)])
    return torch.cat([*map(tokenizer.decode, filled.split(PICTURES_AT_ONCE))])[: len(codes)]


class VQTokenizer:
    """An image tokenizer (`decoders.api.ImageTokenizer`) in float32: decoding costs little,
    rounding would show. vq: a `LlamaGenVQ`, or a `PictureDecoder`, which does not encode. row_end:
    code n of n + 1 follows the codes of every row and carries no picture."""

    def __init__(self, vq: Any, row_end: bool = False) -> None:
        self.vq, self.row_end = vq, row_end
        # [V, C], in the metric that codes are looked up with, and as it is stored
        self.codebook: Tensor = with_row_end(vq.codebook.detach(), row_end)
        self.raw_codebook: Tensor = with_row_end(vq.raw_codebook, row_end)

    @full_float32()
    def decode(self, codes: Tensor) -> Tensor:
        """Decodes codes [B, L] int64 to images [B, 3, H, W] float32 in [0, 1]. Raises DecoderError
        where a row end stands inside a row, or L is not the image's."""
        side, count = self.vq.grid, len(self.codebook) - self.row_end
        if codes.shape[1] != side * (side + self.row_end):
            raise DecoderError(
                f"an image has {side} rows of {side} codes{' and a row end' * self.row_end}, found "
                f"{codes.shape[1]} codes"
            )
        codes = codes.to(self.codebook.device)
        if self.row_end:
            grid = codes.view(len(codes), side, side + 1)[:, :, :side]
            if bool((grid >= count).any()):
                raise DecoderError(
                    f"codes of a picture are below {count}, found {int(grid.max())} inside a row; "
                    "were they made by this model?"
                )
            codes = grid.flatten(1)
        return self.vq.decode(codes)  # [B, side**2] codes

    @full_float32()
    def encode(self, images: Tensor) -> Tensor:
        """Encodes images [B, 3, H, W] in [0, 1] to codes [B, L] with their row ends. Raises
        DecoderError where the VQ model only decodes."""
        codes: Tensor = self.vq.encode(images)  # [B, side**2]
        if not self.row_end:
            return codes
        rows = codes.unflatten(1, (self.vq.grid, -1))
        return F.pad(rows, (0, 1), value=len(self.codebook) - 1).flatten(1)  # [B, side (side + 1)]


def with_row_end(codebook: Tensor, row_end: bool) -> Tensor:
    """Adds to a codebook [n, C] the row end, where there is one, as the last code: a vector so far
    from all others that it is the last of everyone's neighbours."""
    if not row_end:
        return codebook
    diameter = 2 * codebook.norm(dim=-1).max().clamp_min(1e-3)
    far = torch.zeros_like(codebook[:1])
    far[:, 0] = ROW_END_DIAMETERS * diameter
    return torch.cat([codebook, far])


@dataclass(frozen=True)
class PictureDecoder:
    """A VQ model that only decodes. net: codes [B, h, w] -> pictures [B, 3, H, W] around [-1, 1].
    grid: codes per side. codebook [V, C]: in the metric that codes are looked up with."""

    net: Callable[[Tensor], Tensor]
    grid: int
    codebook: Tensor
    encode: ClassVar = ImageTokenizer.encode  # which raises

    @property
    def raw_codebook(self) -> Tensor:
        return self.codebook

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Decodes codes [B, L] to images [B, 3, H, W] float32 in [0, 1]."""
        return to_unit(self.net(codes.unflatten(1, (self.grid, -1))))


@dataclass(frozen=True)
class NoTokenizer:
    """Stands for the tokenizer of a model that draws no pictures (`ImageModel.draws` is false).
    why: and what to do; table: the codebook [V, C], where there is one."""

    why: str
    table: Tensor | None = None
    missing = True

    @property
    def codebook(self) -> Tensor:
        if self.table is None:
            raise DecoderError(f"neighbours of codes need the VQ tokenizer, and {self.why}")
        return self.table

    @property
    def raw_codebook(self) -> Tensor:
        return self.codebook

    def decode(self, codes: Tensor) -> Tensor:
        raise DecoderError(f"pictures need the VQ tokenizer, and {self.why}")


# ---- released tokenizers ------------------------------------------------------------------------

CODEBOOK_TENSOR, DECODER_TENSOR = "quantize.embedding.weight", "decoder.conv_in.weight"
TAMING_MIDDLE = ("block_1", "attn_1", "block_2")  # taming's names of the middle's blocks


@dataclass(frozen=True)
class VQLayout:
    """How a family's VQ tokenizer is stored. what: how messages call it. released: what
    model.tokenizer may be set to. files: names of its file, best first. roots: prefixes that its
    names may have in a checkpoint. taming: whether names are taming's; finest_first: whether the
    decoder's levels are counted so. l2_norm: whether codes are looked up by cosine."""

    what: str
    released: str
    files: tuple[str, ...] = ()
    roots: tuple[str, ...] = ("",)
    taming: bool = False
    finest_first: bool = False
    l2_norm: bool = True

    def root(self, opened: Checkpoint, name: str) -> str | None:
        """Returns the prefix under which a checkpoint has a tensor; None where it has none."""
        return next((at for at in self.roots if f"{at}{name}" in opened.index), None)

    def name(self, parameter: str, levels: int) -> str:
        """Maps a parameter of `LlamaGenVQ` to its name in this layout."""
        if not self.taming:
            return parameter
        name = re.sub(r"\.mid\.(\d)\.", lambda m: f".mid.{TAMING_MIDDLE[int(m[1])]}.", parameter)
        name = name.replace("encoder.conv_blocks.", "encoder.down.").replace(".res.", ".block.")
        last = levels - 1 if self.finest_first else 0
        return re.sub(
            r"^decoder\.conv_blocks\.(\d+)", lambda m: f"decoder.up.{abs(last - int(m[1]))}", name
        )


LLAMAGEN = VQLayout(
    "LlamaGen VQ tokenizer",
    "peizesun/llamagen_t2i (vq_ds16_t2i.pt)",
    ("vq_ds16_t2i.pt", "vq_ds16_c2i.pt", "vq_ds16_t2i.safetensors", "vq_ds16_c2i.safetensors"),
)
CHAMELEON = VQLayout(
    "Chameleon VQGAN",
    "leloy/Anole-7b-v0.1-vqvae-hf, or to vqgan.ckpt of the Chameleon release",
    (
        "vqgan.ckpt",
        "tokenizer/vqgan.ckpt",
        "chameleon/tokenizer/vqgan.ckpt",
        "original_tokenizers/vqgan.ckpt",
        "vqgan.safetensors",
    ),
    roots=("model.vqmodel.", ""),
    taming=True,
    finest_first=True,
    l2_norm=False,
)
JANUS = VQLayout("Janus VQ tokenizer", "", roots=("model.vqmodel.", "vqmodel."), taming=True)


def load_vq(
    kind: VQLayout,
    target: Checkpoint,
    source: str | None,
    codes: int,
    grid: int,
    device: torch.device,
    row_end: bool = False,
) -> tuple[VQTokenizer | NoTokenizer, dict[str, str]]:
    """Loads the image tokenizer in float32, and the SHA-256 of its files where they are not the
    target's. source: folder, file or hub id; None: the target's own, else a file next to it, else
    its codebook alone (no pictures), else nothing. codes: V of the target, the row end included.
    Raises DecoderError where the tokenizer has others."""
    if source is None and kind.root(target, DECODER_TENSOR) is None:
        beside = find(target.folder, kind.files)
        if beside is None:
            logger.warning(
                f"no {kind.what} in {target.path}: codes will be recorded, no pictures made; set "
                f"model.tokenizer to {kind.released}"
            )
            at, table = kind.root(target, CODEBOOK_TENSOR), None
            if at is not None:
                name = f"{at}{CODEBOOK_TENSOR}"
                values = target.read(name)
                check_values(values, name, target.file(name))
                table = with_row_end(values.float().to(device), row_end)
            why = f"no {kind.what} with a decoder is in {target.folder}; set model.tokenizer to "
            return NoTokenizer(f"{why}{kind.released}", table), {}
        source = str(beside)
    files = (*kind.files, *WEIGHT_FILES)  # its own, else those of a model that carries it
    opened = target if source is None else open_checkpoint(source, files, kind.what)
    tokenizer = VQTokenizer(read_vq(kind, opened, grid).to(device), row_end)
    if len(tokenizer.codebook) != codes:
        raise DecoderError(
            f"{target.path} draws with {codes - row_end} codes, its VQ tokenizer has "
            f"{len(tokenizer.codebook) - row_end}; do they belong together?"
        )
    return tokenizer, {} if opened is target else opened.sha256()


def read_vq(kind: VQLayout, opened: Checkpoint, grid: int) -> Any:
    """Reads the VQ model of a checkpoint, float32 on the CPU; grid: the side of the images it
    makes. Raises DecoderError where the checkpoint holds none, or one without a decoder."""
    at = kind.root(opened, DECODER_TENSOR)
    needed = (DECODER_TENSOR, CODEBOOK_TENSOR)
    if at is None or any(f"{at}{name}" not in opened.index for name in needed):
        only = "" if kind.root(opened, CODEBOOK_TENSOR) is None else "a codebook but "
        expected = " and ".join(f"{at or kind.roots[0]}{name}" for name in needed)
        raise DecoderError(
            f"{opened.path} holds {only}no {kind.what}: expected {expected}, found "
            f"{some(opened.index)}; set model.tokenizer to {kind.released}"
        )
    config = config_from_tensors(kind, opened, at, grid)
    with torch.device("meta"):
        module = LlamaGenVQ(config)
    levels = len(config.ch_mult)
    origins = {
        name: Origin((f"{at}{kind.name(name, levels)}",)) for name, _ in module.named_parameters()
    }

    def unused(name: str) -> bool:  # of another model, or of a VQGAN's discriminator
        return harmless(name) or not name.startswith(at) or name.startswith("loss.")

    read_parameters(module, origins, opened, torch.float32, torch.device("cpu"), unused)
    return module.eval()


def config_from_tensors(kind: VQLayout, opened: Checkpoint, at: str, grid: int) -> VQConfig:
    """Reads the network's configuration off the shapes of the tensors under the prefix `at`."""
    stem = r"decoder\.up\.{}\.block\.{}" if kind.taming else r"decoder\.conv_blocks\.{}\.res\.{}"
    block = rf"{re.escape(at)}{stem}\.conv1\.weight"
    levels = count_parts(opened, block.format(r"(\d+)", 0))
    blocks = count_parts(opened, block.format(0, r"(\d+)"))

    def shape(parameter: str) -> tuple[int, ...]:
        return opened.shape(f"{at}{kind.name(parameter, levels)}", 4)

    widths = [
        shape(f"decoder.conv_blocks.{level}.res.0.conv1.weight")[0]
        for level in reversed(range(levels))
    ]
    channels = shape("encoder.conv_in.weight")[0]
    codes, dim = opened.shape(f"{at}{CODEBOOK_TENSOR}", 2)
    return VQConfig(
        codes=codes,
        dim=dim,
        channels=channels,
        ch_mult=tuple(width // channels for width in widths),
        res_blocks=blocks - 1,  # a level of the decoder has one more than of the encoder
        z_channels=shape("decoder.conv_in.weight")[1],
        grid=grid,
        l2_norm=kind.l2_norm,
        group_width=1,
        attention=f"{at}{kind.name('decoder.conv_blocks.0.', levels)}attn.0.norm.weight"
        in opened.index,
    )
