"""Small random Chameleon checkpoints, made by transformers, and plain references of what they hold.

The codes' tokens are scrambled, so that nothing passes that takes them to be in order.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from decoders.api import ImageModel
from decoders.models.chameleon import load_anole, load_lumina
from decoders.models.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.pictures import CHAMELEON
from tests.decoders.models.random_checkpoints import chameleon as checkpoints

CODES, WIDTH, HEADS, GRID, PREFIX = 16, 32, 4, 4, 24
DIM = 8  # of the codebook
SENTENCE = "a red fox in snow Generate an image of x 64 according to the following prompt :"
WORDS = SENTENCE.split(" ")


def vocabulary() -> dict[str, int]:
    return checkpoints.vocabulary(CODES, WORDS, (2,))


def token_of(code: int) -> int:
    """The token of a code; of CODES: the row end's."""
    names = vocabulary()
    return names["<reserved08799>" if code == CODES else f"IMGIMG{checkpoints.letters(code)}Z"]


def write_tokenizer(path: Path) -> None:
    checkpoints.write_tokenizer(path, vocabulary())


def hf_model() -> Any:
    """transformers' Chameleon with random weights, distributions far from uniform."""
    settings = {"vocab_size": 80, "hidden_size": WIDTH, "intermediate_size": 48}
    return checkpoints.hf_model(vocabulary(), settings, GRID, CODES)


def decoder_tensors() -> dict[str, torch.Tensor]:
    """The VQGAN's decoder under taming's names."""
    shape = VQConfig(codes=CODES, dim=DIM, channels=32, ch_mult=(1, 2), res_blocks=1, z_channels=12,
                     grid=GRID, l2_norm=False, group_width=1, attention=False)  # fmt: skip
    named = checkpoints.randomise(LlamaGenVQ(shape), 1).state_dict().items()
    return {CHAMELEON.name(name, 2): x for name, x in named if name.startswith("decoder.")}


def write_checkpoint(folder: Path, model: Any, decoder: bool = True) -> Path:
    """A folder in transformers' layout; decoder: with the VQGAN's, as in Anole's conversion."""
    checkpoints.write_checkpoint(folder, model, vocabulary())
    if decoder:
        named = {f"model.vqmodel.{name}": tensor for name, tensor in decoder_tensors().items()}
        change_tensors(folder, lambda tensors: tensors | named)
    return folder


def load(loader: Any, folder: Path, **options: Any) -> ImageModel:
    shape = {"dtype": "float32", "grid": GRID, "prefix": PREFIX}
    model: ImageModel = loader(checkpoint=str(folder), **shape | options)
    return model


anole, lumina = partial(load, load_anole), partial(load, load_lumina)


def change_tensors(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def vqgan_tensors(model: Any) -> dict[str, torch.Tensor]:
    """The release's vqgan.ckpt: encoder, codebook and decoder, and a piece of the discriminator."""
    own = {k: v.clone() for k, v in model.model.vqmodel.state_dict().items()}
    return own | decoder_tensors() | {"loss.discriminator.main.0.weight": torch.zeros(2)}


def hf_states(model: Any, ids: list[int]) -> torch.Tensor:
    """Normed states [T, D] of one unpadded row."""
    return model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]


def prompt_ids(text: Any, row: int, conditional: bool) -> list[int]:
    """A row's tokens without its padding."""
    ids, mask = (text.features, text.mask) if conditional else (text.uncond, text.uncond_mask)
    return ids[row][mask[row]].tolist()


def reference_pictures(model: Any, codes: torch.Tensor) -> torch.Tensor:
    """codes [B, GRID**2] -> [B, 3, H, W] in [0, 1], by transformers' decoder of Janus: the same
    network but for attention in the coarsest level, and it counts levels from the coarsest."""
    from transformers.models.janus.modeling_janus import JanusVQVAEConfig, JanusVQVAEDecoder

    net = JanusVQVAEDecoder(JanusVQVAEConfig(
        base_channels=32, channel_multiplier=[1, 2], num_res_blocks=1, latent_channels=12,
    ))  # fmt: skip
    for level in net.up:
        level.attn = torch.nn.ModuleList()
    w = vqgan_tensors(model)
    state = {n.removeprefix("decoder."): x for n, x in w.items() if n.startswith("decoder.")}
    swapped = {"up.0": "up.1", "up.1": "up.0"}
    net.load_state_dict({swapped.get(n[:4], n[:4]) + n[4:]: x for n, x in state.items()})
    z = w["quantize.embedding.weight"][codes].view(len(codes), GRID, GRID, DIM).permute(0, 3, 1, 2)
    with torch.no_grad():
        x = net(F.conv2d(z, w["post_quant_conv.weight"], w["post_quant_conv.bias"]))
    return (x / 2 + 0.5).clamp(0, 1)
