"""Small random Janus, Emu3 and SimpleAR checkpoints in transformers' layout, made by transformers,
and a small `decoder.jit`. Logits of these and of Chameleon's by transformers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from decoders.models.janus import TEMPLATE
from tests.decoders.models import chameleon_checkpoint as C
from tests.decoders.models.random_checkpoints import chameleon as checkpoints

WIDTH, HEADS, PREFIX = 32, 4, 64
LEVELS = (4, 3, 2)  # of SimpleAR's codes
CODES = {"janus": 24, "emu3": 16, "anole": C.CODES, "lumina": C.CODES, "simplear": 24}
GRID = {"janus": 4, "emu3": 3, "anole": C.GRID, "lumina": C.GRID, "simplear": 4}
WORDS = ["a", "red", "fox", "in", "snow", "lowres", ",", ".", ":", "|", "<", ">", "3", "*"]
SPECIAL = {
    "janus": ("<unk>", *TEMPLATE.before, *TEMPLATE.after, TEMPLATE.pad),
    "emu3": ("<unk>", "<|extra_203|>", "<|image start|>", "<|image token|>", "<|extra_200|>"),
    "simplear": ("<unk>", "<|t2i|>", "<|soi|>"),
}
TEXT = {
    "vocab_size": 64, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": HEADS, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def vocabulary(kind: str) -> dict[str, int]:
    """Emu3's codes are scrambled, so that nothing passes that takes them to be in order."""
    names = {name: i for i, name in enumerate((*SPECIAL[kind], *WORDS))}
    if kind == "emu3":
        first, count = len(names), CODES[kind]
        names |= {f"<|visual token {c:06d}|>": first + (5 * c + 3) % count for c in range(count)}
    return names


def tokens_of_codes(kind: str) -> list[int]:
    """Of the row end too, where there is one."""
    if kind in ("anole", "lumina"):
        return [C.token_of(code) for code in range(C.CODES + (kind == "lumina"))]
    names, count = vocabulary(kind), CODES[kind]
    if kind == "simplear":
        return [*range(len(names), len(names) + count)]
    return [*(names[f"<|visual token {code:06d}|>"] for code in range(count)),
            names["<|extra_200|>"]]  # fmt: skip


def hf_model(kind: str, **changes: Any) -> Any:
    """transformers' model with random weights, distributions far from uniform."""
    import transformers

    if kind == "janus":
        vq = {
            "embed_dim": 8, "num_embeddings": CODES[kind], "latent_channels": 12,
            "base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 1,
            "num_patches": GRID[kind], "projection_dim": WIDTH, "image_token_embed_dim": WIDTH,
        }  # fmt: skip
        seen = {
            "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 8, "patch_size": 2, "projection_dim": WIDTH,
        }  # fmt: skip
        text = TEXT | {"model_type": "llama", "num_key_value_heads": HEADS}
        config = transformers.JanusConfig(text_config=text, vision_config=seen, vq_config=vq)
        model: Any = transformers.JanusForConditionalGeneration(config)
    elif kind == "emu3":
        vq = {
            "codebook_size": CODES[kind], "base_channels": 32, "channel_multiplier": [1, 2],
            "num_res_blocks": 1, "attn_resolutions": [1], "hidden_size": 64,
        }  # fmt: skip
        text = TEXT | {"num_key_value_heads": 2}
        names = vocabulary(kind) | {"<image>": 0}
        config = transformers.Emu3Config(text_config=text, vq_config=vq, vocabulary_map=names)
        model = transformers.Emu3ForConditionalGeneration(config)
    else:  # keys that heads share, and one matrix for embedding and head
        own = {"vocab_size": len(vocabulary(kind)) + CODES[kind], "num_key_value_heads": 2}
        own |= {"max_position_embeddings": 8192, "tie_word_embeddings": True}
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**TEXT | own | changes))
    checkpoints.randomise(model.eval())
    if kind == "simplear":
        model.get_input_embeddings().weight.data *= checkpoints.SHARP
    return model


def hf_logits(model: Any, kind: str, ids: list[int], codes: list[int]) -> Tensor:
    """[T, V] of one unpadded prompt and the codes after it (a row end is the last code)."""
    if kind == "janus":
        embed = model.get_input_embeddings()(torch.tensor([ids]))
        drawn = model.prepare_embeddings_for_image_generation(
            torch.tensor([codes], dtype=torch.long)
        )
        states = model.model.language_model(inputs_embeds=torch.cat([embed, drawn], 1))
        return model.model.generation_head(states.last_hidden_state)[0]
    tokens = tokens_of_codes(kind)
    return model.lm_head(C.hf_states(model, ids + [tokens[code] for code in codes]))[:, tokens]


class Colours(nn.Module):
    """A colour for each code of SimpleAR, in squares of 16 pixels, as a frame: [B, 1, h, w] ->
    [B, 3, 1, H, W]."""

    def __init__(self, codes: int) -> None:
        super().__init__()
        self.table = nn.Embedding(codes, 3)

    def forward(self, codes: Tensor) -> Tensor:
        rgb = self.table(codes).tanh().permute(0, 4, 1, 2, 3)
        return rgb.repeat_interleave(16, 3).repeat_interleave(16, 4)


def write_decoder(folder: Path) -> Path:
    """decoder.jit in a folder, of random colours."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.jit.script(Colours(CODES["simplear"])).save(str(folder / "decoder.jit"))
    return folder
