"""Codes and accepted lengths of every kind of decoder on a small random model under a fixed noise
table, as JSON. `python -m tests.golden.decoders` writes the file; the test compares with it.

Why: a change of structure must not change a code. The table is given, so that the source of noise
may change without it.

Three entries are newer than the others. The drafts of "eagle2 | top-p" and "lantern_released |
top-p" tie among codes of probability zero, and since then the tie goes to the code of the lowest
index. In "lantern_released | greedy" equally long paths tie as in the released code (METHODS 6).
"""

import json
from pathlib import Path

import torch

from decoders.api import ImageModel, Sampling
from decoders.compose import DecoderSpec, build_decoder
from decoders.models.random_weights import random_model
from decoders.noise import OVERRUN, SLOTS, Noise
from tests.decoders.compositions import DYNAMIC, EAGLE, EXACT, LANTERN_PP, LOOP, SPECS, STATIC, part

FILE = Path(__file__).parent / "decoders.json"
CHAIN = part("propose.trees.chain.Chain", depth=3)
LANTERN = part("verify.lantern.Lantern", k=20, delta=0.4)
RELEASED = part("verify.lantern.Lantern", k=20, residual="released")
PP_RELEASED = part("verify.lantern.LanternPP", k=3, lam=3.0, residual="released")
ALL = {
    **SPECS,
    "eagle1": DecoderSpec("eagle1", LOOP, EAGLE, STATIC, EXACT),
    "sd_chain": DecoderSpec("sd_chain", LOOP, EAGLE, CHAIN, EXACT),
    "lantern": DecoderSpec("lantern", LOOP, EAGLE, DYNAMIC, LANTERN),
    "lantern_chain": DecoderSpec("lantern_chain", LOOP, EAGLE, CHAIN, LANTERN),
    "lantern_released": DecoderSpec("lantern_released", LOOP, EAGLE, DYNAMIC, RELEASED),
    "lantern_pp_chain": DecoderSpec("lantern_pp_chain", LOOP, EAGLE, CHAIN, LANTERN_PP),
    "lantern_pp_released": DecoderSpec("lantern_pp_released", LOOP, EAGLE, STATIC, PP_RELEASED),
}
SAMPLINGS = {
    "sampling": Sampling(cfg=2.0),
    "no guidance": Sampling(temperature=0.7),
    "top-k": Sampling(cfg=2.0, top_k=12),
    "top-p": Sampling(cfg=2.0, top_k=40, top_p=0.8),
    "greedy": Sampling(temperature=0.0, cfg=2.0),
}
PROMPTS = ["a b", "c d e", "f"]


def small() -> ImageModel:
    """V = 64, L = 36, float32."""
    return random_model(vocab=64, grid=6, width=32)


def generated(model: ImageModel, name: str, sampling: str) -> dict[str, list[list[int]]]:
    """Codes and accepted drafts of a batch of three."""
    decoder = build_decoder(model, ALL[name], SAMPLINGS[sampling])
    generator = torch.Generator().manual_seed(5)
    size = (len(PROMPTS), model.target.length + OVERRUN, SLOTS)
    noise = Noise(torch.rand(size, generator=generator))
    generation = decoder.generate(model.text.encode(PROMPTS), noise)
    return {"codes": generation.codes.tolist(), "accepted": generation.trace.accepted.tolist()}


def write() -> None:
    model = small()
    entries = {f"{n} | {s}": generated(model, n, s) for n in ALL for s in SAMPLINGS}
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in entries.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write()
