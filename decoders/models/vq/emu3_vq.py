"""Emu3's VQ decoder (2409.18869, section 2.2) for one picture: 32768 codes of 4 numbers, down 8.

The network is transformers'. It decodes video: one frame of codes becomes four frames, of which a
picture is the first. Frames meet in the few channels of the blocks over time alone, so the rest of
the decoder is given the first frame: the same picture for a quarter of the work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.emu3.configuration_emu3 import Emu3VQVAEConfig
from transformers.models.emu3.modeling_emu3 import Emu3VQVAEConv3d, Emu3VQVAEDecoder

from decoders.api import DecoderError
from decoders.documents import Size
from decoders.kinds import Amount, entries, fitted
from decoders.models.checkpoint import Checkpoint, Source, fill
from decoders.models.vq.llamagen_vq import to_unit

# What is read of config.json. What it leaves out is as transformers has it: the released network.
SIZES = (
    "codebook_size", "embed_dim", "latent_channels", "base_channels", "num_res_blocks",
    "temporal_downsample_factor", "hidden_size", "num_attention_heads",
)  # fmt: skip
KNOWN: dict[str, Any] = {
    **dict.fromkeys(SIZES, Size),
    **dict.fromkeys(("channel_multiplier", "attn_resolutions"), list[Amount]),
}


class Emu3VQ(nn.Module):
    """Codes [B, L] int64 in raster order -> pictures; it does not encode. grid: codes a side. Names
    are those of transformers' checkpoint."""

    def __init__(self, config: Emu3VQVAEConfig, grid: int) -> None:
        super().__init__()
        self.grid = grid
        self.quantize = nn.ModuleDict(
            {"embedding": nn.Embedding(config.codebook_size, config.embed_dim)}
        )
        over_time: Any = {"kernel_size": (3, 1, 1), "stride": (1, 1, 1)}
        self.post_quant_conv = Emu3VQVAEConv3d(
            config.embed_dim, config.latent_channels, **over_time
        )
        self.decoder: Any = Emu3VQVAEDecoder(config)

    @property
    def codebook(self) -> Tensor:
        """[V, C] float32, looked up by plain L2."""
        table: Any = self.quantize["embedding"]
        return table.weight.detach()

    raw_codebook = codebook

    def encode(self, images: Tensor) -> Tensor:
        """Raises DecoderError."""
        raise DecoderError(
            "Emu3's VQ model turns codes into pictures alone: train on codes from a source of your "
            "own, data._target_=module.Class (see decoders/training/sources.py), not on pictures"
        )

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, L] -> images [B, 3, H, W] float32 in [0, 1]."""
        decoder = self.decoder
        latents = F.embedding(codes, self.codebook).unflatten(1, (1, self.grid, -1))
        latents = latents.permute(0, 4, 1, 2, 3)  # [B, C, 1, h, w]
        both = torch.cat([self.post_quant_conv(latents), latents])  # [2 B, C, 1, h, w]
        for layer in decoder.time_res_stack:
            both = layer(both)
        for layer in decoder.time_conv:
            both = F.silu(layer(both))  # twice the frames
        x, latents = both[:, :, 0].chunk(2)  # [B, C, h, w] each
        x = decoder.up_block(decoder.middle_block(decoder.conv_in(x), latents), latents)
        return to_unit(decoder.conv_out(F.silu(decoder.norm_out(x, latents))))


def read_emu3_vq(opened: Checkpoint, grid: int, at: str) -> Emu3VQ:
    """The VQ decoder whose names begin with `at` in a checkpoint of transformers' layout, float32
    on the CPU."""
    own = opened.config.get("model_type") == Emu3VQVAEConfig.model_type
    given = opened.config if own else opened.config.get("vq_config", {})
    where = f"{opened.path}: config.json: vq_config"
    known = entries(fitted(where, given, dict[str, Any]), KNOWN, where)
    config = Emu3VQVAEConfig(**{name: known[name] for name in KNOWN if name in known})
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        module = Emu3VQ(config, grid)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm3d):
            norm.num_batches_tracked = None  # a counter of training
    names = module.state_dict()
    parts = tuple(f"{at}{part}" for part in ("decoder.", "post_quant_conv.", "quantize."))

    def unused(name: str) -> bool:
        """The encoder, counters of batch norms, and the language model."""
        return not name.startswith(parts) or name.endswith("num_batches_tracked")

    sources = {name: Source((f"{at}{name}",)) for name in names}
    fill(module, sources, opened, torch.float32, torch.device("cpu"), unused)
    return module.eval()
