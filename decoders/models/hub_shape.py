"""A Llama-shaped target's configuration, from what the hub's config.json says of it.

Chameleon, Janus and Emu3 are Llama decoders that differ in a few fields. What this code does not
compute is refused here, before gigabytes are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoders.api import DecoderError
from decoders.kinds import Positive, fitted
from decoders.models.checkpoint import Checkpoint, some
from decoders.models.shape import TransformerConfig
from decoders.models.weights import explained

NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)


def text_config(
    opened: Checkpoint,
    family: str,
    sections: tuple[str, ...],
    usual: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The part of config.json that describes the language model: the first of these sections, or
    all of it. usual: what the family's configuration class has for sizes that a section leaves out.
    Raises DecoderError where a size is missing."""
    given = next((opened.config[s] for s in sections if s in opened.config), opened.config)
    if given is not opened.config and isinstance(given, dict):
        given = {**(usual or {}), **given}
    missing = [name for name in NEEDED if name not in given] if isinstance(given, dict) else NEEDED
    if missing:
        raise DecoderError(
            f"{opened.path} is no {family} checkpoint: its config.json must say {some(missing)}"
        )
    return dict(given)


def hub_shape(
    opened: Checkpoint,
    given: Mapping[str, Any],
    *,
    wrong: Mapping[str, Any],
    family: str,
    places: int = 4096,
    rope_base: float = 10000.0,
    norm_eps: float = 1e-5,
    **rest: Any,
) -> TransformerConfig:
    """The target's shape. given: see `text_config`. wrong: what else this code does not compute,
    by name, true where the checkpoint has it. places, rope_base and norm_eps stand in where the
    file says nothing. rest: fields of `TransformerConfig`. Raises DecoderError."""
    rope = given.get("rope_parameters") or {}
    heads = int(given["num_attention_heads"])
    shared = int(given.get("num_key_value_heads") or heads)  # heads of keys and values
    _refuse(
        opened,
        given,
        {**wrong, "heads that are no multiple of those of keys": heads % shared},
        family,
    )
    base = rope.get("rope_theta", given.get("rope_theta", rope_base))
    with explained():
        base = fitted(f"{opened.path}: config.json: rope_theta", base, Positive)
    found = TransformerConfig(
        width=int(given["hidden_size"]),
        layers=int(given["num_hidden_layers"]),
        heads=heads,
        group=heads // shared,
        ffn=int(given["intermediate_size"]),
        norm_eps=float(given.get("rms_norm_eps", norm_eps)),
        conditioning="tokens",
        positions="line",
        prefix_rope="identity",
        rope_base=base,
        **rest,
    )
    places = int(given.get("max_position_embeddings", places))
    if found.prefix + found.length > places:
        raise DecoderError(
            f"a prompt of {found.prefix} and an image of {found.length} tokens are more than the "
            f"model's {places} positions; lower model.prefix or model.grid"
        )
    return found


def _refuse(
    opened: Checkpoint, given: Mapping[str, Any], wrong: Mapping[str, Any], family: str
) -> None:
    rope = given.get("rope_parameters") or {}
    scaling = given.get("rope_scaling") or {}
    kinds = {rope.get("rope_type"), scaling.get("rope_type"), scaling.get("type")}
    reasons = {
        **wrong,
        "a scaled rotation": kinds - {None, "default"},
        "another activation than silu": given.get("hidden_act", "silu") != "silu",
        "biases in attention": given.get("attention_bias"),
        "heads of another width than hidden_size / num_attention_heads": (
            given.get("head_dim") or 0
        )
        * given["num_attention_heads"]
        not in (0, given["hidden_size"]),
    }
    found = [name for name, there in reasons.items() if there]
    if found:
        raise DecoderError(
            f"{opened.path}: config.json has {'; '.join(found)}, which is not computed here; "
            f"{family} has none of it"
        )
