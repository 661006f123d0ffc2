"""Small random Chameleon checkpoints, made by transformers, and plain references of what they hold.

The codes' tokens are scrambled, so that nothing passes that takes them to be in order.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.vq.pictures import CHAMELEON
from tests.decoders.models.made import chameleon as made

CODES, WIDTH, HEADS, GRID, PREFIX = 16, 32, 4, 4, 24
DIM = 8  # of the codebook
SENTENCE = "a red fox in snow Generate an image of x 64 according to the following prompt :"
WORDS = SENTENCE.split(" ")
SPECIAL, CONTROL, letters = made.SPECIAL, made.CONTROL, made.letters


def vocabulary() -> dict[str, int]:
    return made.vocabulary(CODES, WORDS, (2, 3, 16, 32))


def token_of(code: int) -> int:
    """The token of a code; of CODES: the row end's."""
    names = vocabulary()
    return names["<reserved08799>" if code == CODES else f"IMGIMG{letters(code)}Z"]


def write_tokenizer(path: Path) -> None:
    made.write_tokenizer(path, vocabulary())


def hf_model(seed: int = 0, **changes: Any) -> Any:
    """transformers' Chameleon with random weights, distributions far from uniform."""
    settings = {"vocab_size": 80, "hidden_size": WIDTH, "intermediate_size": 48, **changes}
    return made.hf_model(vocabulary(), settings, GRID, seed, CODES)


def decoder_tensors(seed: int = 1) -> dict[str, torch.Tensor]:
    """The VQGAN's decoder under taming's names."""
    shape = VQConfig(codes=CODES, dim=DIM, channels=32, ch_mult=(1, 2), res_blocks=1, z_channels=12,
                     grid=GRID, l2_norm=False, group_width=1, attention=False)  # fmt: skip
    with torch.device("meta"):
        named = {CHAMELEON.name(name, 2): x for name, x in LlamaGenVQ(shape).state_dict().items()}
    generator, drawn = torch.Generator().manual_seed(seed), {}
    for name, x in named.items():
        if name.startswith("decoder."):
            noise = torch.randn(x.shape, generator=generator)
            one = 0.1 * noise if name.endswith("bias") else 1 + 0.3 * noise
            drawn[name] = noise * noise[0].numel() ** -0.5 if noise.ndim > 1 else one
    return drawn


def write_checkpoint(
    folder: Path, model: Any, decoder: bool = True, tokenizer: bool = True
) -> Path:
    """A folder in transformers' layout; decoder: with the VQGAN's, as in Anole's conversion."""
    model.save_pretrained(folder)
    if decoder:
        change_tensors(folder, lambda t: t | hub(decoder_tensors()))
    if tokenizer:
        write_tokenizer(folder / "tokenizer.json")
    return folder


def hub(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"model.vqmodel.{name}": tensor for name, tensor in tensors.items()}


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


def our_states(model: Any, text: Any, codes: torch.Tensor) -> torch.Tensor:
    """Codes [B, T] through the cache, one by one -> states [2 B, P + T, D]."""
    target, rows = model.target, 2 * text.batch
    cache = target.new_cache(rows, target.prefix + codes.shape[1])
    states = [target.prefill(text, 2, cache)]
    seen = F.pad(text.row_mask(2), (0, codes.shape[1]))
    for i in range(codes.shape[1]):
        seen[:, target.prefix + i] = True
        place = torch.full((rows, 1), i)
        ids = codes[:, i : i + 1].repeat(2, 1)
        states.append(target.forward_codes(ids, place, place + target.prefix, seen[:, None], cache))
    return torch.cat(states, 1)


# ---- LlamaGen's and Chameleon's VQ network in float64 --------------------------------------------


def norm(x: torch.Tensor, w: dict[str, torch.Tensor], at: str) -> torch.Tensor:
    groups = x.reshape(len(x), 32, -1)
    mean, spread = groups.mean(-1, keepdim=True), groups.var(-1, unbiased=False, keepdim=True)
    scaled = ((groups - mean) / (spread + 1e-6).sqrt()).reshape(x.shape)
    return scaled * w[f"{at}.weight"][:, None, None] + w[f"{at}.bias"][:, None, None]


def conv(x: torch.Tensor, w: dict[str, torch.Tensor], at: str) -> torch.Tensor:
    weight = w[f"{at}.weight"]
    return F.conv2d(x, weight, w[f"{at}.bias"], padding=weight.shape[-1] // 2)


def res(x: torch.Tensor, w: dict[str, torch.Tensor], at: str) -> torch.Tensor:
    h = x
    for n in (1, 2):
        h = norm(h, w, f"{at}.norm{n}")
        h = conv(h * h.sigmoid(), w, f"{at}.conv{n}")
    return h + (conv(x, w, f"{at}.nin_shortcut") if f"{at}.nin_shortcut.weight" in w else x)


def attention(x: torch.Tensor, w: dict[str, torch.Tensor], at: str) -> torch.Tensor:
    h = norm(x, w, f"{at}.norm")
    q, k, v = (conv(h, w, f"{at}.{name}").flatten(2) for name in "qkv")  # [B, C, HW]
    weight = (torch.einsum("bcs,bct->bst", q, k) * q.shape[1] ** -0.5).softmax(-1)
    mixed = torch.einsum("bst,bct->bcs", weight, v).view(x.shape)
    return x + conv(mixed, w, f"{at}.proj_out")


def level(x: torch.Tensor, w: dict[str, torch.Tensor], at: str, name: str) -> torch.Tensor:
    """The blocks of a level, `name`.0, `name`.1, ..., with attention behind those that have it."""
    n = 0
    while f"{at}.{name}.{n}.conv1.weight" in w:
        x = res(x, w, f"{at}.{name}.{n}")
        x = attention(x, w, f"{at}.attn.{n}") if f"{at}.attn.{n}.q.weight" in w else x
        n += 1
    return x


def decoded(z: torch.Tensor, w: dict, middle: Any, ups: Any, name: str) -> torch.Tensor:
    """z [B, C, h, w] -> [B, 3, H, W] around [-1, 1]. middle, ups: names in `w` of the middle's
    blocks, and of the levels, the coarsest first; name: of a level's blocks."""
    x = conv(conv(z, w, "post_quant_conv"), w, "decoder.conv_in")
    first, between, last = (f"decoder.mid.{at}" for at in middle)
    x = res(attention(res(x, w, first), w, between), w, last)
    for at in ups:
        x = level(x, w, f"decoder.{at}", name)
        if f"decoder.{at}.upsample.conv.weight" in w:
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
            x = conv(x, w, f"decoder.{at}.upsample.conv")
    x = norm(x, w, "decoder.norm_out")
    return conv(x * x.sigmoid(), w, "decoder.conv_out")


def reference_pictures(model: Any, codes: torch.Tensor) -> torch.Tensor:
    """codes [B, GRID**2] -> [B, 3, H, W] float64 in [0, 1]."""
    w = {k: v.double() for k, v in vqgan_tensors(model).items()}
    z = w["quantize.embedding.weight"][codes].view(len(codes), GRID, GRID, DIM).permute(0, 3, 1, 2)
    x = decoded(z, w, ("block_1", "attn_1", "block_2"), ("up.1", "up.0"), "block")
    return (x / 2 + 0.5).clamp(0, 1)
