"""Chameleon's VQGAN (2405.09818, after taming-transformers 2012.09841): 8192 x 256, down 16.

Anole and Lumina-mGPT both use it. It is LlamaGen's network without attention in the coarsest level
and with a codebook that is not normalised: codes are looked up by L2. Two layouts are read: Meta's
``vqgan.ckpt`` and ``model.vqmodel.*`` in a transformers checkpoint, whose Chameleon has no decoder
(Anole's conversion carries one).
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import DecoderError
from decoders.models.checked import checked
from decoders.models.checkpoint import (
    Checkpoint,
    Source,
    fill,
    numbered,
    open_checkpoint,
    some,
)
from decoders.models.vq.emu3_vq import Emu3VQ
from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig, has_encoder, widths_of
from decoders.models.vq.tokenizer import NoTokenizer

HUB = "model.vqmodel."
CODEBOOK = "quantize.embedding.weight"
VQ_FILES = (
    "vqgan.ckpt",
    "tokenizer/vqgan.ckpt",
    "chameleon/tokenizer/vqgan.ckpt",
    "original_tokenizers/vqgan.ckpt",
    "vqgan.safetensors",
)
MIDDLE = ("block_1", "attn_1", "block_2")
FAR = 100.0  # the row end's distance, in diameters of the codebook
logger = logging.getLogger(__name__)


def released_name(own: str, levels: int) -> str:
    """A parameter of `LlamaGenVQ` -> its name in the taming layout, where levels of the decoder are
    counted from the finest one."""
    name = re.sub(r"\.mid\.(\d)\.", lambda m: f".mid.{MIDDLE[int(m[1])]}.", own)

    def level(match: re.Match[str]) -> str:
        index = int(match[2])
        return (
            f"encoder.down.{index}."
            if match[1] == "encoder"
            else f"decoder.up.{levels - 1 - index}."
        )

    name = re.sub(r"^(encoder|decoder)\.conv_blocks\.(\d+)\.", level, name)
    return name.replace(".res.", ".block.")


def root_of(opened: Checkpoint) -> str | None:
    """The prefix of the VQGAN's names in a checkpoint; None where it has no codebook."""
    names = opened.keys()
    return next((at for at in (HUB, "") if f"{at}{CODEBOOK}" in names), None)


def vq_config(opened: Checkpoint, at: str, grid: int) -> VQConfig:
    """The network's shape, read off the decoder. Raises DecoderError where it has none."""
    names = opened.keys()
    if f"{at}decoder.conv_in.weight" not in names:
        raise DecoderError(
            f"{opened.path} has a codebook but no {at}decoder.conv_in.weight: transformers' "
            f"Chameleon has no VQGAN decoder; set model.tokenizer to {VQ_FILES[0]} of the "
            "Chameleon release, or to a checkpoint that carries it"
        )
    up = rf"{re.escape(at)}decoder\.up\."
    levels = numbered(opened, rf"{up}(\d+)\.block\.0\.conv1\.weight")
    blocks = numbered(opened, rf"{up}{levels - 1}\.block\.(\d+)\.conv1\.weight")
    first = f"{at}decoder.up.{{}}.block.0.conv1.weight"  # level 0 is the finest
    widths = [opened.shape(first.format(level), 4)[0] for level in range(levels)]
    entry = f"{at}encoder.conv_in.weight"
    own = opened.shape(entry, 4)[0] if entry in names else None
    codes, dim = opened.shape(f"{at}{CODEBOOK}", 2)
    return VQConfig(
        codes=codes,
        dim=dim,
        **widths_of(widths, own),
        res_blocks=blocks - 1,
        z_channels=opened.shape(f"{at}decoder.conv_in.weight", 4)[1],
        grid=grid,
        l2_norm=False,
        group_width=1,
        attention=f"{at}decoder.up.{levels - 1}.attn.0.norm.weight" in names,
    )


def read_chameleon_vq(opened: Checkpoint, grid: int) -> LlamaGenVQ:
    """The VQGAN of either layout, float32 on the CPU; grid is the side of the images it makes.

    A file with a decoder alone is read too: its tokenizer does not encode. Raises DecoderError
    where the checkpoint holds no VQGAN, or one without a decoder.
    """
    at = root_of(opened)
    if at is None:
        raise DecoderError(
            f"{opened.path} holds no Chameleon VQGAN: expected {CODEBOOK} or {HUB}{CODEBOOK}, "
            f"found {some(opened.keys())}"
        )
    cfg = vq_config(opened, at, grid)
    with torch.device("meta"):
        module = LlamaGenVQ(cfg, encodes=has_encoder(opened.keys(), at))
    levels = len(cfg.ch_mult)
    names = {name: f"{at}{released_name(name, levels)}" for name, _ in module.named_parameters()}
    sources = {own: Source((theirs,)) for own, theirs in names.items()}

    def elsewhere(name: str) -> bool:
        """The rest of a language model, or the discriminator the VQGAN was trained with."""
        return not name.startswith(at) if at else name.startswith("loss.")

    fill(module, sources, opened, torch.float32, torch.device("cpu"), elsewhere)
    return module.eval()


def with_row_end(codebook: Tensor, row_end: bool) -> Tensor:
    """codebook [n, C] -> [n + 1, C] where a row end is the last code: a vector so far from all the
    others that it is the last of everyone's neighbours."""
    if not row_end:
        return codebook
    diameter = 2 * codebook.norm(dim=-1).max().clamp_min(1e-3)
    far = torch.zeros_like(codebook[:1])
    far[:, 0] = FAR * diameter
    return torch.cat([codebook, far])


class ChameleonTokenizer:
    """`decoders.api.ImageTokenizer`: the VQGAN in float32, and row ends where the model has them.

    A row end, code n of n + 1, follows the codes of every row and carries no picture.
    """

    def __init__(self, vq: LlamaGenVQ | Emu3VQ, row_end: bool) -> None:
        self.vq, self.row_end = vq, row_end
        self.codebook: Tensor = with_row_end(vq.codebook.detach(), row_end)  # [V, C]
        self.raw_codebook = self.codebook  # looked up by plain L2

    def decode(self, codes: Tensor) -> Tensor:
        """[B, L] int64 -> [B, 3, H, W] float32 in [0, 1]; row ends are dropped.

        Raises DecoderError where a row end stands inside a row, or L is not the image's.
        """
        side = self.vq.cfg.grid
        if codes.shape[1] != side * (side + self.row_end):
            raise DecoderError(
                f"an image has {side} rows of {side} codes{' and a row end' * self.row_end}, found "
                f"{codes.shape[1]} codes"
            )
        grid = codes.to(self.codebook.device).view(len(codes), side, -1)[:, :, :side]
        if bool((grid >= self.vq.cfg.codes).any()):
            raise DecoderError(
                f"codes of a picture are below {self.vq.cfg.codes}, found {int(grid.max())} inside "
                "a row; were they made by this model?"
            )
        return self.vq.decode(grid.flatten(1))  # [B, side**2] codes

    def encode(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W] in [0, 1] -> codes [B, L] with their row ends. Raises DecoderError
        for a tokenizer that only decodes."""
        if not isinstance(self.vq, LlamaGenVQ):
            raise DecoderError(
                f"expected a tokenizer with an encoder, found {type(self.vq).__name__}, which "
                "turns codes into pictures alone; give codes (data=shards), not pictures"
            )
        side = self.vq.cfg.grid
        codes = self.vq.encode(images)  # [B, side**2]
        if not self.row_end:
            return codes
        rows = codes.view(len(codes), side, side)
        return F.pad(rows, (0, 1), value=self.vq.cfg.codes).flatten(1)  # [B, side * (side + 1)]


class CodebookOnly:
    """A model with a codebook but without a VQGAN decoder: neighbours can be had, pictures not."""

    missing = True  # no pictures: `decoders.api.ImageModel.draws`

    def __init__(self, codebook: Tensor, row_end: bool, path: Path) -> None:
        self.codebook: Tensor = with_row_end(codebook, row_end)  # [V, C]
        self.raw_codebook, self.path = self.codebook, path

    def decode(self, codes: Tensor) -> Tensor:
        raise DecoderError(
            f"{self.path} has no VQGAN decoder, so no pictures can be made: put {VQ_FILES[0]} "
            "beside it, or set model.tokenizer"
        )


def load_tokenizer(
    target: Checkpoint, source: str | None, grid: int, row_end: bool, device: torch.device
) -> tuple[ChameleonTokenizer | CodebookOnly | NoTokenizer, dict[str, str]]:
    """The image tokenizer and the SHA-256 of its files, where they are not the target's own.

    source: folder, file or hub id; None: the target's own decoder, else a file beside it, else its
    codebook alone (no pictures), else nothing.
    """
    own, opened = root_of(target), target
    if source is None and f"{HUB}decoder.conv_in.weight" not in target.index:
        beside = target.beside(VQ_FILES)
        if beside is None:
            logger.warning(
                "no VQGAN decoder in %s: codes will be recorded, no pictures made; set "
                "model.tokenizer to %s of the Chameleon release",
                target.path,
                VQ_FILES[0],
            )
            if own is None:
                return NoTokenizer(str(target.folder), VQ_FILES), {}
            name = f"{own}{CODEBOOK}"
            codebook = checked(target.read(name), name, target.file(name)).float().to(device)
            return CodebookOnly(codebook, row_end, target.path), {}
        source = str(beside)
    if source is not None:
        opened = open_checkpoint(source, _files_of(source), "Chameleon VQGAN")
    tokenizer = ChameleonTokenizer(read_chameleon_vq(opened, grid).to(device), row_end)
    return tokenizer, {} if opened is target else opened.sha256()


def _files_of(source: str) -> tuple[str, ...]:
    """What to look for: the release's file, unless a local folder holds a model with its VQGAN."""
    folder = Path(source).expanduser()
    whole = folder.is_dir() and not any((folder / file).exists() for file in VQ_FILES)
    return () if whole else VQ_FILES
