"""Names of a transformer layer's tensors in published checkpoints: LlamaGen's own and Llama's."""

from __future__ import annotations

from decoders.models.checkpoint import Source

HARMLESS = ("freqs_cis", "rotary_emb.inv_freq", "kv_cache", "codebook_used")


def harmless(name: str) -> bool:
    """Tensors that checkpoints carry and nothing needs: tables that are computed, caches."""
    return any(part in name for part in HARMLESS)


def layer_sources(own: str, theirs: str, llama: bool, input_norm: bool = True) -> dict[str, Source]:
    """Parameters of one `Layer` under the prefix `own` from tensors under `theirs`."""

    def take(*names: str) -> Source:
        return Source(tuple(f"{theirs}{name}.weight" for name in names))

    if llama:
        found = {
            "attention.wqkv": take("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "attention.wo": take("self_attn.o_proj"),
            "feed_forward.w13": take("mlp.gate_proj", "mlp.up_proj"),
            "feed_forward.w2": take("mlp.down_proj"),
            "ffn_norm": take("post_attention_layernorm"),
        }
        if input_norm:
            found["attention_norm"] = take("input_layernorm")
    else:
        found = {n: take(n) for n in ("attention.wqkv", "attention.wo", "feed_forward.w2")}
        found |= {n: take(n) for n in ("ffn_norm", "attention_norm")}
        found["feed_forward.w13"] = take("feed_forward.w1", "feed_forward.w3")
    return {f"{own}{name}.weight": source for name, source in found.items()}
