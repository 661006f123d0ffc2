"""Where the VQ tokenizers of released models are, and how they name what `LlamaGenVQ` names.

LlamaGen's network (2406.06525) serves Chameleon too (2405.09818, 8192 x 256, down 16), which has no
attention in the coarsest level and a codebook that is not normalised. Chameleon's files have the
names of taming-transformers (2012.09841), and so have Janus's in transformers; transformers' own
Chameleon has no decoder (Anole's conversion carries one).
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

import torch

from decoders.api import DecoderError
from decoders.models.loading.checkpoint import (
    Checkpoint,
    Source,
    count_parts,
    fill,
    open_checkpoint,
    some,
)
from decoders.models.loading.layouts import harmless
from decoders.models.loading.repository import WEIGHTS, find
from decoders.models.loading.weights import checked
from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.vq.tokenizer import NoTokenizer, VQTokenizer, with_row_end

CODEBOOK, DECODER = "quantize.embedding.weight", "decoder.conv_in.weight"
MIDDLE = ("block_1", "attn_1", "block_2")  # taming's names of the middle's blocks
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pictures:
    """A family's VQ tokenizer. released: what model.tokenizer may be set to. files: names of its
    file, best first. roots: prefixes that its names may have in a checkpoint. taming: taming's
    names; finest_first: that is how the decoder's levels are counted. l2_norm: whether codes are
    looked up by cosine."""

    what: str
    released: str
    files: tuple[str, ...] = ()
    roots: tuple[str, ...] = ("",)
    taming: bool = False
    finest_first: bool = False
    l2_norm: bool = True

    def root(self, opened: Checkpoint, name: str) -> str | None:
        """The prefix under which a checkpoint has a tensor; None where it has none."""
        return next((at for at in self.roots if f"{at}{name}" in opened.index), None)

    def name(self, parameter: str, levels: int) -> str:
        """A parameter of `LlamaGenVQ` -> its name in this layout."""
        if not self.taming:
            return parameter
        name = re.sub(r"\.mid\.(\d)\.", lambda m: f".mid.{MIDDLE[int(m[1])]}.", parameter)
        name = name.replace("encoder.conv_blocks.", "encoder.down.").replace(".res.", ".block.")
        last = levels - 1 if self.finest_first else 0
        return re.sub(
            r"^decoder\.conv_blocks\.(\d+)", lambda m: f"decoder.up.{abs(last - int(m[1]))}", name
        )


LLAMAGEN = Pictures(
    "LlamaGen VQ tokenizer",
    "peizesun/llamagen_t2i (vq_ds16_t2i.pt)",
    ("vq_ds16_t2i.pt", "vq_ds16_c2i.pt", "vq_ds16_t2i.safetensors", "vq_ds16_c2i.safetensors"),
)
CHAMELEON = Pictures(
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
JANUS = Pictures("Janus VQ tokenizer", "", roots=("model.vqmodel.", "vqmodel."), taming=True)


def load_pictures(
    kind: Pictures,
    target: Checkpoint,
    source: str | None,
    codes: int,
    grid: int,
    device: torch.device,
    row_end: bool = False,
) -> tuple[VQTokenizer | NoTokenizer, dict[str, str]]:
    """The image tokenizer in float32, and the SHA-256 of its files where they are not the target's.

    source: folder, file or hub id; None: the target's own, else a file next to it, else its
    codebook alone (no pictures), else nothing. codes: V of the target, the row end included. Raises
    DecoderError where the tokenizer has others.
    """
    if source is None and kind.root(target, DECODER) is None:
        beside = find(target.folder, kind.files)
        if beside is None:
            return _without(kind, target, device, row_end), {}
        source = str(beside)
    files = (*kind.files, *WEIGHTS)  # its own, else those of a model that carries it
    opened = target if source is None else open_checkpoint(source, files, kind.what)
    tokenizer = VQTokenizer(read_vq(kind, opened, grid).to(device), row_end)
    if len(tokenizer.codebook) != codes:
        raise DecoderError(
            f"{target.path} draws with {codes - row_end} codes, its VQ tokenizer has "
            f"{len(tokenizer.codebook) - row_end}; do they belong together?"
        )
    return tokenizer, {} if opened is target else opened.sha256()


def _without(
    kind: Pictures, target: Checkpoint, device: torch.device, row_end: bool
) -> NoTokenizer:
    logger.warning(
        "no %s in %s: codes will be recorded, no pictures made; set model.tokenizer to %s",
        kind.what, target.path, kind.released,
    )  # fmt: skip
    why = f"no {kind.what} with a decoder is in {target.folder}; set model.tokenizer to "
    at = kind.root(target, CODEBOOK)
    if at is None:
        return NoTokenizer(f"{why}{kind.released}")
    name = f"{at}{CODEBOOK}"
    table = checked(target.read(name), name, target.file(name)).float().to(device)
    return NoTokenizer(f"{why}{kind.released}", with_row_end(table, row_end))


def read_vq(kind: Pictures, opened: Checkpoint, grid: int) -> Any:
    """The VQ model of a checkpoint, float32 on the CPU; grid: the side of the images it makes.
    Raises DecoderError where the checkpoint holds none, or one without a decoder."""
    at = kind.root(opened, DECODER)
    needed = (DECODER, CODEBOOK)
    if at is None or any(f"{at}{name}" not in opened.index for name in needed):
        only = "" if kind.root(opened, CODEBOOK) is None else "a codebook but "
        expected = " and ".join(f"{at or kind.roots[0]}{name}" for name in needed)
        raise DecoderError(
            f"{opened.path} holds {only}no {kind.what}: expected {expected}, found "
            f"{some(opened.index)}; set model.tokenizer to {kind.released}"
        )
    config = config_from_tensors(kind, opened, at, grid)
    with torch.device("meta"):
        module = LlamaGenVQ(config)
    levels = len(config.ch_mult)
    parts = {
        name: Source((f"{at}{kind.name(name, levels)}",)) for name, _ in module.named_parameters()
    }

    def unused(name: str) -> bool:
        """The rest of another model, or the discriminator that a VQGAN was trained with."""
        return harmless(name) or not name.startswith(at) or name.startswith("loss.")

    fill(module, parts, opened, torch.float32, torch.device("cpu"), unused)
    return module.eval()


def config_from_tensors(kind: Pictures, opened: Checkpoint, at: str, grid: int) -> VQConfig:
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
    codes, dim = opened.shape(f"{at}{CODEBOOK}", 2)
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
