"""Chameleon checkpoints (Anole, Lumina-mGPT) with random weights, made by transformers itself; the
EAGLE drafter and Meta's vqgan.ckpt that go with them.

The codes' tokens are scrambled, as nothing may take them to be in order.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.models.chameleon import BLOCK, DOWN, SIZE
from tests.decoders.models.random_checkpoints.llamagen import random_vq

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
CONTROL = ("<eoss>", "<racm3:break>", "<reserved08706>", "<image>", "<reserved08799>")
TEMPLATE = "Generate an image of x according to the following prompt :".split()  # noqa: SIM905
CODES, WIDTH = 8192, 64
SHARP = 4  # scale of the head: distributions far from uniform


def letters(code: int) -> str:
    """A code's number as its token spells it."""
    return "".join("ABCDEFGHIJ"[int(digit)] for digit in str(code))


def vocabulary(codes: int, words: Sequence[str], blocks: Sequence[int]) -> dict[str, int]:
    """Token -> id. blocks: sides of images, in blocks of 32 pixels, that have a token."""
    names = {name: i for i, name in enumerate(SPECIAL)}
    first = len(names)
    names |= {f"IMGIMG{letters(code)}Z": first + (5 * code + 3) % codes for code in range(codes)}
    for name in (*CONTROL, *(f"<reserved{SIZE + n:05d}>" for n in blocks), *words):
        names.setdefault(name, len(names))
    return names


def write_tokenizer(path: Path, names: Mapping[str, int]) -> None:
    """tokenizer.json: whole words, numbers apart."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel(dict(names), unk_token="<unk>"))
    numbers = pre_tokenizers.Split(Regex(r"\d+"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), numbers])
    made.add_special_tokens([n for n in names if n.startswith("<") and len(n) > 1])
    made.save(str(path))


def write_checkpoint(folder: Path, model: Any, names: Mapping[str, int]) -> Path:
    """A model of transformers and a tokenizer of whole words, in transformers' layout."""
    model.save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json", names)
    return folder


def randomise(module: Any, seed: int = 0) -> Any:
    """Random weights and statistics, frozen: distributions far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    for name, values in [*module.named_parameters(), *module.named_buffers()]:
        if not values.is_floating_point() or "inv_freq" in name:
            continue
        noise = torch.randn(values.shape, generator=generator)
        if "norm" in name:
            one = float(name.endswith(("weight", "running_var")))
            values.data.copy_(one + 0.3 * noise.clamp(-2, 2))
        else:
            scale = values[0].numel() ** -0.5 if values.ndim > 1 else 0.1
            values.data.copy_(scale * noise)
    return module.requires_grad_(False)


def hf_model(
    names: Mapping[str, int], settings: Mapping[str, Any], grid: int, codes: int = 16
) -> Any:
    """transformers' Chameleon with random weights, whose pictures have grid x grid codes. settings:
    of its configuration."""
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration

    pictures = {
        "embed_dim": 8, "num_embeddings": codes, "latent_channels": 12, "resolution": 2 * grid,
        "base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 1,
    }  # fmt: skip
    shape = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 4)
    shape |= {"num_hidden_layers": 2, "vocabulary_map": dict(names), "vq_config": pictures}
    config = ChameleonConfig(**{**shape, **settings})
    model = randomise(ChameleonForConditionalGeneration(config).eval())
    model.lm_head.weight.data *= SHARP
    return model


def published_drafter(hf: Any) -> tuple[Any, dict[str, Tensor]]:
    """transformers' decoder layer with random weights, and the drafter's file it stands for."""
    from transformers.models.chameleon.modeling_chameleon import ChameleonDecoderLayer

    layer = randomise(ChameleonDecoderLayer(hf.config, 0).eval(), 11)
    named = {f"layers.0.{name}": values.clone() for name, values in layer.state_dict().items()}
    named["embed_tokens.weight"] = hf.model.embed_tokens.weight.clone()
    width = hf.config.hidden_size
    eye = torch.eye(width)
    named["fc.weight"] = torch.cat([0.3 * eye, 0.8 * eye], 1)
    named["fc.bias"] = 0.1 * torch.randn(width, generator=torch.Generator().manual_seed(11))
    return layer, named


def write_vqgan(path: Path, codes: int, channels: int = 32) -> Path:
    """Meta's vqgan.ckpt: 16 pixels a code."""
    from decoders.models.pictures import CHAMELEON

    levels, state = random_vq(codes, channels, l2_norm=False, attention=False)
    state["quantize.embedding.weight"].normal_(generator=torch.Generator().manual_seed(0))
    named = {CHAMELEON.name(name, levels): tensor for name, tensor in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": named}, path)
    return path


def stand_in(folder: Path, settings: Mapping[str, Any], words: Sequence[str]) -> dict[str, str]:
    """All parts of a Chameleon model in a folder. settings: those of the model, whose grid is kept;
    words: of its captions. Returns the settings that name what was written."""
    from safetensors.torch import save_file

    names = vocabulary(CODES, [*TEMPLATE, *words], (int(settings["grid"]) * DOWN // BLOCK,))
    config = {"vocab_size": len(names), "hidden_size": WIDTH, "intermediate_size": 96}
    model = hf_model(names, config, int(settings["grid"]))
    target, drafter = folder / "target", folder / "drafter"
    write_checkpoint(target, model, names)
    drafter.mkdir(parents=True)
    save_file(published_drafter(model)[1], drafter / "model.safetensors")
    return {
        "checkpoint": str(target),
        "drafters.eagle": str(drafter),
        "tokenizer": str(write_vqgan(folder / "vqgan.ckpt", CODES)),
    }
