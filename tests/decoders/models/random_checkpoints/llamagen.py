"""LlamaGen's target, EAGLE drafter and VQ tokenizer with random weights, under their published
names: the original .pt, the hub conversion (one file or shards, safetensors or .bin)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHARP = 4  # scale of the head: distributions far from uniform


@dataclass(frozen=True)
class Sizes:
    """text: width of a caption's features; prefix: their number."""

    width: int = 64
    layers: int = 2
    heads: int = 2
    ffn: int = 96
    vocab: int = 16384
    grid: int = 16
    prefix: int = 120
    text: int = 32

    @property
    def config(self) -> dict[str, Any]:
        """config.json of the hub conversion."""
        return {
            "architectures": ["LlamaForCausalLM"], "hidden_size": self.width,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads, "intermediate_size": self.ffn,
            "vocab_size": self.vocab, "block_size": self.grid**2, "cls_token_num": self.prefix,
            "caption_dim": self.text, "rms_norm_eps": 1e-5, "input_type": "t2i",
        }  # fmt: skip


def random_tensor(*shape: int, seed: int) -> Tensor:
    """Normal: of variance 1 / fan-in, or around 1 for the scales of a norm."""
    scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.2
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return x + 1 if len(shape) == 1 else x


def original(sizes: Sizes, classes: int | None = None) -> dict[str, Tensor]:
    """The tensors of an original .pt file; with `classes`, of a class-conditional one."""
    width, ffn = sizes.width, sizes.ffn
    shapes: dict[str, tuple[int, ...]] = {
        "tok_embeddings.weight": (sizes.vocab, width),
        "norm.weight": (width,),
        "output.weight": (sizes.vocab, width),
    }
    if classes is None:
        shapes |= {
            "cls_embedding.cap_proj.fc1.weight": (width, sizes.text),
            "cls_embedding.cap_proj.fc2.weight": (width, width),
            "cls_embedding.uncond_embedding": (sizes.prefix, sizes.text),
        }
    else:
        shapes["cls_embedding.embedding_table.weight"] = (classes + 1, width)
    for n in range(sizes.layers):
        shapes |= {
            f"layers.{n}.attention.wqkv.weight": (3 * width, width),
            f"layers.{n}.attention.wo.weight": (width, width),
            f"layers.{n}.feed_forward.w1.weight": (ffn, width),
            f"layers.{n}.feed_forward.w3.weight": (ffn, width),
            f"layers.{n}.feed_forward.w2.weight": (width, ffn),
            f"layers.{n}.attention_norm.weight": (width,),
            f"layers.{n}.ffn_norm.weight": (width,),
        }
    made = {name: random_tensor(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    made["output.weight"] *= SHARP
    return made


HUB_NAMES = {
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def hub_names(given: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The same weights under the hub conversion's names."""
    out = {
        "model.embed_tokens.weight": given["tok_embeddings.weight"],
        "model.norm.weight": given["norm.weight"],
        "lm_head.weight": given["output.weight"],
    }
    out |= {f"model.{k}": v for k, v in given.items() if k.startswith("cls_embedding")}
    for n in range(layers):
        own, hub = f"layers.{n}.", f"model.layers.{n}."
        qkv = given[f"{own}attention.wqkv.weight"].chunk(3)
        pairs = {f"self_attn.{name}_proj": x for name, x in zip("qkv", qkv, strict=True)}
        pairs |= {new: given[f"{own}{old}.weight"] for new, old in HUB_NAMES.items()}
        out |= {f"{hub}{name}.weight": tensor.clone() for name, tensor in pairs.items()}
    return out


def write_target(
    folder: Path, sizes: Sizes, shards: int = 1, pickled: bool = False, **config: object
) -> Path:
    """A folder in the hub conversion's layout; config: keys of config.json, changed."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**sizes.config, **config}))
    named = hub_names(original(sizes), sizes.layers)
    tensors = {k: v.contiguous() for k, v in named.items()}
    ending = "bin" if pickled else "safetensors"
    stem = "pytorch_model" if pickled else "model"
    names = sorted(tensors)
    files: dict[str, str] = {}
    for s in range(shards):
        part = {n: tensors[n] for n in names[s::shards]}
        file = f"{stem}.{ending}" if shards == 1 else f"{stem}-{s + 1:05d}-of-{shards:05d}.{ending}"
        if pickled:
            torch.save(part, folder / file)
        else:
            save_file(part, folder / file)
        files |= dict.fromkeys(part, file)
    if shards > 1:
        index = {"metadata": {}, "weight_map": files}
        (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index))
    return folder


def drafter_tensors(sizes: Sizes) -> dict[str, Tensor]:
    """A random EAGLE drafter under its published names, pulled towards the target's features."""
    named = hub_names(original(sizes), 1).items()
    layer = {name.removeprefix("model."): x.flip(0) for name, x in named if ".layers.0." in name}
    del layer["layers.0.input_layernorm.weight"]
    return layer | {
        "embed_tokens.weight": random_tensor(sizes.vocab, sizes.width, seed=100),
        "fc.bias": random_tensor(sizes.width, seed=101) - 1,
        "fc.weight": torch.cat([torch.eye(sizes.width) * 0.3, torch.eye(sizes.width) * 0.8], 1),
    }


def write_drafter(
    folder: Path, sizes: Sizes, pickled: bool = True, without: str = "", **config: object
) -> Path:
    """A folder in the published layout of the EAGLE drafters; without: a tensor left out."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    described = {**sizes.config, "num_hidden_layers": 1, **config}
    (folder / "config.json").write_text(json.dumps(described))
    tensors = {k: v for k, v in drafter_tensors(sizes).items() if k != without}
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def random_vq(codes: int, channels: int, **own: Any) -> tuple[int, dict[str, Tensor]]:
    """The levels of a VQ network with 16 pixels a code, and its tensors under LlamaGen's names."""
    from decoders.models.llamagen_vq import LlamaGenVQ, VQConfig

    config = VQConfig(
        codes=codes, channels=channels, ch_mult=(1,) * 5, res_blocks=1, z_channels=channels,
        group_width=1, **own,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return len(config.ch_mult), LlamaGenVQ(config).state_dict()


def write_vq(path: Path, codes: int, channels: int = 32) -> Path:
    """A VQ tokenizer as the release has it (vq_ds16_t2i.pt): 8 numbers a code."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": random_vq(codes, channels)[1]}, path)
    return path


def stand_in(folder: Path, settings: Mapping[str, Any], words: Sequence[str]) -> dict[str, str]:
    """All parts of a LlamaGen model in a folder. settings: those of the model, whose grid is kept;
    words: of its captions. Returns the settings that name what was written."""
    from tests.decoders.models.random_checkpoints.t5 import write_t5

    sizes = Sizes(grid=int(settings.get("grid") or Sizes.grid))
    return {
        "checkpoint": str(write_target(folder / "target", sizes)),
        "drafters.eagle": str(write_drafter(folder / "drafter", sizes)),
        "tokenizer": str(write_vq(folder / "vq_ds16_t2i.pt", sizes.vocab)),
        "text": str(write_t5(folder / "text", words, sizes.text)),
    }
