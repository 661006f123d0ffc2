"""Small random Janus and Emu3 checkpoints in transformers' layout, made by transformers."""

from pathlib import Path
from typing import Any

import torch

from decoders.models.janus import TEMPLATE
from tests.decoders.models import chameleon_checkpoint as C
from tests.decoders.models.random_checkpoints import simplear as S
from tests.decoders.models.random_checkpoints.chameleon import randomise, write_tokenizer

WIDTH, HEADS, PREFIX = 32, 4, 64
CODES = {"janus": 24, "emu3": 16, "anole": C.CODES, "lumina": C.CODES, "simplear": S.CODES}
GRID = {"janus": 4, "emu3": 3, "anole": C.GRID, "lumina": C.GRID, "simplear": 4}
WORDS = ["a", "red", "fox", "in", "snow", "lowres", ",", ".", ":", "|", "<", ">", "3", "*"]
SPECIAL = {
    "janus": ("<unk>", *TEMPLATE.before, *TEMPLATE.after, TEMPLATE.pad),
    "emu3": ("<unk>", "<|extra_203|>", "<|image start|>", "<|image token|>", "<|extra_200|>"),
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


def hf_model(kind: str) -> Any:
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
        model: Any = transformers.JanusForConditionalGeneration(config).eval()
    else:
        vq = {
            "codebook_size": CODES[kind], "base_channels": 32, "channel_multiplier": [1, 2],
            "num_res_blocks": 1, "attn_resolutions": [1], "hidden_size": 64,
        }  # fmt: skip
        text = TEXT | {"num_key_value_heads": 2}
        names = vocabulary(kind) | {"<image>": 0}
        config = transformers.Emu3Config(text_config=text, vq_config=vq, vocabulary_map=names)
        model = transformers.Emu3ForConditionalGeneration(config).eval()
    return randomise(model)


def write_checkpoint(folder: Path, model: Any, kind: str) -> Path:
    model.save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json", vocabulary(kind))
    return folder


def hf_logits(model: Any, kind: str, ids: list[int], codes: list[int]) -> torch.Tensor:
    """[T, V] of one unpadded prompt and the codes after it (a row end is the last code)."""
    if kind in ("anole", "lumina"):
        kept = [C.token_of(code) for code in range(C.CODES + (kind == "lumina"))]
        return model.lm_head(C.hf_states(model, ids + [kept[code] for code in codes]))[:, kept]
    words = torch.tensor([ids])
    if kind == "simplear":  # the codes are the last tokens
        first = model.config.vocab_size - S.CODES
        whole = torch.tensor([ids + [first + code for code in codes]])
        return model(input_ids=whole).logits[0, :, first:]
    if kind == "janus":
        embed = model.get_input_embeddings()(words)
        drawn = model.prepare_embeddings_for_image_generation(
            torch.tensor([codes], dtype=torch.long)
        )
        states = model.model.language_model(inputs_embeds=torch.cat([embed, drawn], 1))
        return model.model.generation_head(states.last_hidden_state)[0]
    kept = tokens_of_codes()
    whole = torch.cat([words, torch.tensor([[kept[c] for c in codes]], dtype=torch.long)], 1)
    return model(input_ids=whole).logits[0][:, kept]


def tokens_of_codes() -> list[int]:
    names = vocabulary("emu3")
    codes = [names[f"<|visual token {code:06d}|>"] for code in range(CODES["emu3"])]
    return [*codes, names["<|extra_200|>"]]
