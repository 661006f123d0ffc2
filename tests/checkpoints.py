"""Small random checkpoints in the released layouts: a function for each family. For tests, and for
dry runs of a study without its downloads (`python -m tests.stand_ins`).

Anole's, Lumina-mGPT's, Janus's, Emu3's and SimpleAR's are made by transformers, LlamaGen's by the
names of its release. The tokens of codes are scrambled where a vocabulary says which they are, so
that nothing passes that takes them to be in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from decoders.api import ImageModel
from decoders.models import chameleon, emu3, janus, simplear
from decoders.models.chameleon import FIRST_SIZE_TOKEN, PIXELS_PER_BLOCK, PIXELS_PER_CODE
from decoders.models.janus import TEMPLATE
from decoders.models.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.models.pictures import CHAMELEON, LLAMAGEN

SHARP = 4  # scale of the head: distributions far from uniform


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


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# ---- LlamaGen: target (the original .pt, the hub conversion), EAGLE drafter, VQ tokenizer --------


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
        made = {"architectures": ["LlamaForCausalLM"], "hidden_size": self.width}
        made |= {"num_hidden_layers": self.layers, "num_attention_heads": self.heads}
        made |= {"num_key_value_heads": self.heads, "intermediate_size": self.ffn}
        made |= {"vocab_size": self.vocab, "block_size": self.grid**2}
        made |= {"cls_token_num": self.prefix, "caption_dim": self.text}
        return made | {"rms_norm_eps": 1e-5, "input_type": "t2i"}


LITTLE = Sizes(width=32, ffn=48, vocab=24, grid=4, prefix=6, text=12)


def random_tensor(*shape: int, seed: int) -> Tensor:
    """Normal: of variance 1 / fan-in, or around 1 for the scales of a norm."""
    scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.2
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return x + 1 if len(shape) == 1 else x


def llamagen(sizes: Sizes = LITTLE, classes: int | None = None) -> dict[str, Tensor]:
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


FLASH = 2, 32  # FlashAR's vertical layers, and the width of its gate


def flash(gate: str) -> dict[str, Tensor]:
    """FlashAR's class-conditional file. gate: a network, a number, or none."""
    (vertical, hidden), width, vocab = FLASH, LITTLE.width, LITTLE.vocab
    tensors = llamagen(replace(LITTLE, layers=LITTLE.layers + vertical), classes=10)
    tensors |= {
        "medusa_norm.weight": random_tensor(width, seed=200),
        "medusa_output.weight": random_tensor(vocab, width, seed=200) * SHARP,
    }
    if gate == "network":
        tensors |= {
            "hv_gate_mlp.0.weight": random_tensor(hidden, 2 * vocab, seed=200) * 3,
            "hv_gate_mlp.2.weight": random_tensor(1, hidden, seed=200) * 3,
            "hv_gate_mlp.2.bias": random_tensor(1, seed=200) - 1,
        }
    return tensors | ({} if gate == "none" else {"hv_mix_logit": torch.tensor(0.7)})


HUB_NAMES = {
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def hub_names(given: Mapping[str, Tensor], layers: int = LITTLE.layers) -> dict[str, Tensor]:
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


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    pickled: bool = False,
    shards: int = 1,
) -> Path:
    """config.json unless that is empty, and one file of weights or shards with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    stem, ending = ("pytorch_model", "bin") if pickled else ("model", "safetensors")
    names, files = sorted(tensors), dict[str, str]()
    for s in range(shards):
        part = {n: tensors[n].contiguous() for n in names[s::shards]}
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


def write_llamagen(folder: Path, sizes: Sizes = LITTLE, **form: Any) -> Path:
    """The hub conversion of a target."""
    return write_folder(folder, hub_names(llamagen(sizes), sizes.layers), sizes.config, **form)


def write_original(path: Path, content: object, **config: Any) -> Path:
    """An original .pt file, and next to it the number of heads of its width."""
    torch.save(content, path)
    config = {"num_attention_heads": LITTLE.heads, **config}
    (path.parent / "config.json").write_text(json.dumps(config))
    return path


def drafter_tensors(sizes: Sizes = LITTLE) -> dict[str, Tensor]:
    """A random EAGLE drafter under its published names, pulled towards the target's features."""
    named = hub_names(llamagen(sizes), 1).items()
    layer = {name.removeprefix("model."): x.flip(0) for name, x in named if ".layers.0." in name}
    del layer["layers.0.input_layernorm.weight"]
    return layer | {
        "embed_tokens.weight": random_tensor(sizes.vocab, sizes.width, seed=100),
        "fc.bias": random_tensor(sizes.width, seed=101) - 1,
        "fc.weight": torch.cat([torch.eye(sizes.width) * 0.3, torch.eye(sizes.width) * 0.8], 1),
    }


def write_drafter(
    folder: Path, sizes: Sizes = LITTLE, pickled: bool = True, without: str = ""
) -> Path:
    """The published layout of LlamaGen's EAGLE drafters; without: a tensor left out."""
    tensors = {k: v for k, v in drafter_tensors(sizes).items() if k != without}
    return write_folder(folder, tensors, sizes.config | {"num_hidden_layers": 1}, pickled)


def write_vq(path: Path, codes: int, chameleon: bool = False) -> Path:
    """A VQ tokenizer of 16 pixels a code: LlamaGen's vq_ds16_t2i.pt, or Meta's vqgan.ckpt."""
    own = {"l2_norm": False, "attention": False} if chameleon else {}
    shape: dict[str, Any] = {"channels": 32, "ch_mult": (1,) * 5, "z_channels": 32} | own
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = LlamaGenVQ(VQConfig(codes, res_blocks=1, group_width=1, **shape)).state_dict()
        if chameleon:
            state["quantize.embedding.weight"].normal_()
    layout, key = (CHAMELEON, "state_dict") if chameleon else (LLAMAGEN, "model")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({key: {layout.name(name, 5): x for name, x in state.items()}}, path)
    return path


# ---- T5 -----------------------------------------------------------------------------------------


def write_t5(
    folder: Path,
    words: Sequence[str] = ("a", "red", "blue", "cube", "ring", "on", "cat", "."),
    width: int = 16,
) -> Path:
    """A text encoder with a tokenizer of whole words; others are unknown to it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    names = ["<pad>", "</s>", "<unk>", *words]
    sizes = {"d_model": width, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
    tokens = {"vocab_size": len(names), "pad_token_id": 0, "eos_token_id": 1}
    config = T5Config(**sizes, **tokens, feed_forward_proj="gated-gelu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        T5EncoderModel(config).save_pretrained(folder)
    known = {name: i for i, name in enumerate(names)}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


# ---- transformers' models: Chameleon (Anole, Lumina-mGPT), Janus, Emu3, SimpleAR -----------------

CODES = {"chameleon": 16, "janus": 24, "emu3": 16, "simplear": 24}
GRID = {"chameleon": 4, "janus": 4, "emu3": 3, "simplear": 4}
LEVELS = (4, 3, 2)  # of SimpleAR's codes
WIDTH, HEADS = 32, 4
PREFIX = 64
WORDS = [
    *("a", "red", "fox", "in", "snow", "lowres", ",", ".", ":", "|", "<", ">", "3", "*"),
    *("Generate", "an", "image", "of", "x", "64", "according", "to", "the", "following", "prompt"),
]
SPECIAL = {
    "chameleon": ("<s>", "<pad>", "</s>", "<unk>"),
    "janus": ("<unk>", *TEMPLATE.before, *TEMPLATE.after, TEMPLATE.pad),
    "emu3": ("<unk>", "<|extra_203|>", "<|image start|>", "<|image token|>", "<|extra_200|>"),
    "simplear": ("<unk>", "<|t2i|>", "<|soi|>"),
}
CONTROL = ("<eoss>", "<racm3:break>", "<reserved08706>", "<image>", "<reserved08799>")


def token_name(kind: str, code: int) -> str:
    """The token of a code as its vocabulary spells it; of the first number that is none: the row
    end's."""
    if kind == "emu3":
        return f"<|visual token {code:06d}|>" if code < CODES[kind] else "<|extra_200|>"
    return f"IMGIMG{''.join('ABCDEFGHIJ'[int(digit)] for digit in str(code))}Z"


def vocabulary(kind: str, codes: int = 0, words: Sequence[str] = WORDS, side: int = 2) -> Any:
    """Token -> id. side: of Chameleon's images, in blocks of 32 pixels."""
    names, codes = {name: i for i, name in enumerate(SPECIAL[kind])}, codes or CODES[kind]
    scrambled = [(5 * code + 3) % codes for code in range(codes)]
    if kind == "chameleon":
        names |= {token_name(kind, c): len(SPECIAL[kind]) + n for c, n in enumerate(scrambled)}
        words = [*CONTROL, f"<reserved{FIRST_SIZE_TOKEN + side:05d}>", *words]
    for name in words:
        names.setdefault(name, len(names))
    if kind == "emu3":
        first = len(names)
        names |= {token_name(kind, c): first + n for c, n in enumerate(scrambled)}
    return names


def tokens_of_codes(kind: str) -> list[int]:
    """Of the row end too, where there is one."""
    names, count = vocabulary(kind), CODES[kind]
    if kind == "simplear":
        return [*range(len(names), len(names) + count)]
    if kind == "chameleon":
        return [names[token_name(kind, c)] for c in range(count)] + [names["<reserved08799>"]]
    return [names[token_name(kind, c)] for c in range(count + 1)]


def hf_model(kind: str, names: Mapping[str, int] | None = None, **changes: Any) -> Any:
    """transformers' model with random weights. changes: of its text's configuration, and `grid` and
    `codes` of its pictures."""
    import transformers

    names = names or vocabulary(kind)
    grid, codes = changes.pop("grid", GRID[kind]), changes.pop("codes", CODES[kind])
    text = {"vocab_size": 64, "hidden_size": WIDTH, "intermediate_size": 48}
    text |= {"num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": 2}
    text |= {"max_position_embeddings": 256}
    text |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    vq = {"base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 1}
    many_heads = {"num_key_value_heads": HEADS}
    if kind == "chameleon":
        vq |= {"embed_dim": 8, "num_embeddings": codes, "latent_channels": 12}
        vq |= {"resolution": 2 * grid}
        text |= many_heads | {"vocab_size": 80, "max_position_embeddings": 4096} | changes
        made = transformers.ChameleonConfig(**text, vocabulary_map=dict(names), vq_config=vq)
        model: Any = transformers.ChameleonForConditionalGeneration(made)
    elif kind == "janus":
        vq |= {"embed_dim": 8, "num_embeddings": codes, "latent_channels": 12}
        vq |= {"num_patches": grid, "projection_dim": WIDTH, "image_token_embed_dim": WIDTH}
        seen = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        seen |= {"image_size": 8, "patch_size": 2, "projection_dim": WIDTH}
        text |= many_heads | {"model_type": "llama"}
        made = transformers.JanusConfig(text_config=text, vision_config=seen, vq_config=vq)
        model = transformers.JanusForConditionalGeneration(made)
    elif kind == "emu3":
        vq |= {"codebook_size": codes, "attn_resolutions": [1], "hidden_size": 64}
        seen = dict(names) | {"<image>": 0}
        made = transformers.Emu3Config(text_config=text, vq_config=vq, vocabulary_map=seen)
        model = transformers.Emu3ForConditionalGeneration(made)
    else:  # keys that heads share, and one matrix for embedding and head
        text |= {"vocab_size": len(names) + codes, "tie_word_embeddings": True}
        text |= {"max_position_embeddings": 8192} | changes
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**text))
    randomise(model.eval())
    if kind in ("chameleon", "simplear"):
        head = model.lm_head if kind == "chameleon" else model.get_input_embeddings()
        head.weight.data *= SHARP
    return model


def write_tokenizer(path: Path, names: Mapping[str, int]) -> None:
    """tokenizer.json: whole words, numbers apart."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    path.parent.mkdir(parents=True, exist_ok=True)
    made = Tokenizer(models.WordLevel(dict(names), unk_token="<unk>"))
    numbers = pre_tokenizers.Split(Regex(r"\d+"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), numbers])
    made.add_special_tokens([n for n in names if n.startswith("<") and len(n) > 1])
    made.save(str(path))


def write_hf(folder: Path, model: Any, names: Mapping[str, int]) -> Path:
    """A model of transformers and a tokenizer of whole words, in transformers' layout."""
    model.save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json", names)
    return folder


def chameleon_drafter(hf: Any) -> tuple[Any, dict[str, Tensor]]:
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


def chameleon_decoder() -> dict[str, Tensor]:
    """The decoder that transformers' Chameleon lacks, of `hf_model`'s encoder, under taming's
    names."""
    sizes: dict[str, Any] = {"channels": 32, "ch_mult": (1, 2), "res_blocks": 1, "z_channels": 12}
    off: dict[str, Any] = {"l2_norm": False, "group_width": 1, "attention": False}
    shape = VQConfig(codes=CODES["chameleon"], **sizes, **off)
    named = randomise(LlamaGenVQ(shape), 1).state_dict().items()
    return {CHAMELEON.name(name, 2): x for name, x in named if name.startswith("decoder.")}


class Colours(nn.Module):
    """A colour for each code of SimpleAR, in squares of 16 pixels, as a frame: [B, 1, h, w] ->
    [B, 3, 1, H, W]."""

    def __init__(self, codes: int) -> None:
        super().__init__()
        self.table = nn.Embedding(codes, 3)

    def forward(self, codes: Tensor) -> Tensor:
        rgb = self.table(codes).tanh().permute(0, 4, 1, 2, 3)
        return rgb.repeat_interleave(16, 3).repeat_interleave(16, 4)


def write_cosmos(folder: Path) -> Path:
    """decoder.jit in a folder, of random colours."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.jit.script(Colours(CODES["simplear"])).save(str(folder / "decoder.jit"))
    return folder


LOADERS: dict[str, Any] = {"anole": chameleon.load_anole, "lumina": chameleon.load_lumina}
LOADERS |= {"janus": janus.load, "emu3": emu3.load, "simplear": simplear.load}


def family(kind: str) -> str:
    return "chameleon" if kind in ("anole", "lumina") else kind


def load(kind: str, folder: Path, **options: Any) -> ImageModel:
    usual = {"dtype": "float32", "grid": GRID[family(kind)], "prefix": PREFIX}
    model: ImageModel = LOADERS[kind](checkpoint=str(folder), **usual | options)
    return model


# ---- all parts of a model, for a dry run of a study ----------------------------------------------


def stand_in(
    loader: str, folder: Path, settings: Mapping[str, Any], words: Sequence[str]
) -> dict[str, str]:
    """Writes the parts of a model, small in all but codes and grid. settings: those of the model;
    words: of its captions. Returns the settings that name what was written."""
    drafter = folder / "drafter"
    if loader == "decoders.models.llamagen.load":
        sizes = Sizes(grid=int(settings.get("grid") or Sizes.grid))
        made = {
            "checkpoint": write_llamagen(folder / "target", sizes),
            "drafters.eagle": write_drafter(drafter, sizes),
            "tokenizer": write_vq(folder / "vq_ds16_t2i.pt", sizes.vocab),
            "text": write_t5(folder / "text", words, sizes.text),
        }
    else:
        codes, grid = 8192, int(settings["grid"])
        names = vocabulary(
            "chameleon", codes, [*WORDS, *words], grid * PIXELS_PER_CODE // PIXELS_PER_BLOCK
        )
        shape = {"vocab_size": len(names), "hidden_size": 64, "intermediate_size": 96}
        model = hf_model("chameleon", names, grid=grid, **shape)
        made = {
            "checkpoint": write_hf(folder / "target", model, names),
            "drafters.eagle": write_folder(drafter, chameleon_drafter(model)[1], {}),
            "tokenizer": write_vq(folder / "vqgan.ckpt", codes, chameleon=True),
        }
    return {key: str(path) for key, path in made.items()}


STAND_INS = tuple(
    f"decoders.models.{loader}"
    for loader in ("llamagen.load", "chameleon.load_anole", "chameleon.load_lumina")
)
