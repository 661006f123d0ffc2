"""Made-up runs whose truth is known: decoders by the names of their parts, with effects."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.analyse.line import Line
from bench.analyse.paired import CLIP_LESS
from bench.analyse.run import Entry, Role, Run, Section
from metrics.stats import NO_INTERVAL

NAN = math.nan
SPECULATIVE = {"target": "decoders.loops.speculative.Speculative", "kwargs": {}}
EAGLE = {"target": "decoders.propose.drafters.eagle.Eagle", "kwargs": {"checkpoint": None}}


def part(name: str, /, **kwargs: object) -> dict[str, Any]:
    return {"target": f"decoders.{name}", "kwargs": kwargs}


EAGLE3 = part("propose.drafters.eagle3.Eagle3", checkpoint="x")
CHAIN, EXACT = part("propose.trees.chain.Chain", depth=4), part("verify.exact.Exact")
AR = {"loop": part("loops.autoregressive.Autoregressive"), "drafter": None, "tree": None,
      "acceptance": None, "proposer": None}  # fmt: skip
BASE = {"loop": SPECULATIVE, "drafter": EAGLE, "tree": CHAIN, "acceptance": EXACT, "proposer": None}


def lantern(delta: float, **more: object) -> dict[str, Any]:
    rule = {"k": 64, "delta": delta, "residual": "paper", "metric": "l2"} | more
    return BASE | {"acceptance": part("verify.lantern.Lantern", **rule)}


def cool(delta: float) -> dict[str, Any]:
    return BASE | {"acceptance": part("verify.cool_sd.CoolSD", delta=delta, decay=0.7)}


IMAGES, BLOCKS = 70, 10  # as in study=main


def entry(
    name: str, rng, prompts: np.ndarray, speed: float, codes: float, moments, verdict="relaxed"
) -> Entry:
    """A decoder that takes 1 / speed seconds and commits so many codes per forward: timed in blocks
    whose moments slow all decoders alike, and measured on images, whose prompts do so too."""
    scatter = np.exp(prompts + rng.normal(0, 0.06, IMAGES)) if codes > 1 else np.ones(IMAGES)
    nfe = 255 / (codes * scatter)
    shared = {
        "status": "ok",
        "decoder": name,
        "seed": 0,
        "prompt": "",
        "image": "",
        "disturbed": False,
    }
    timed = pd.DataFrame({
        "protocol": "latency", "prompt_index": range(BLOCKS), "block": range(BLOCKS),
        "seconds_prefill": 0.0, "nfe": nfe[:BLOCKS], "mal": 255 / nfe[:BLOCKS],
        "seconds_total": moments * rng.normal(1, 0.03, BLOCKS) / speed
        * nfe[:BLOCKS] / nfe.mean(),
    })  # fmt: skip
    drawn = {"protocol": "quality", "prompt_index": range(IMAGES), "nfe": nfe, "mal": 255 / nfe}
    rows = pd.concat([timed, pd.DataFrame(drawn)]).assign(**shared)
    rows.index += len(name) * 1000  # as in a table of all decoders
    figures = {"status": "ok", "exactness": verdict, "temperature": 1.0}
    figures |= dict.fromkeys(("speedup", "tv_output", CLIP_LESS), NO_INTERVAL)
    role = Role.BASELINE if name == "ar" else Role.DECODER
    return Entry(name, role, Line(name, rows), figures)


def changed(made: Entry, **figures: Any) -> Entry:
    return replace(made, figures={**made.figures, **figures})


def run_of(specs: dict[str, dict[str, Any]], entries: list[Entry], name: str = "made") -> Run:
    decoders = [
        {"name": key, "spec": spec | {"name": key}, "sampling": {}} for key, spec in specs.items()
    ]
    section = Section("sampling", entries, "FID", "CLIP", margin=2.0)
    return Run(Path(name), "made@1", [section], pd.DataFrame(), {"config": {"decoders": decoders}})


def still(name: str, speed: float, **more: Any) -> Entry:
    """A decoder whose figures do not scatter."""
    rng = np.random.default_rng(0)
    return entry(name, rng, np.zeros(IMAGES), speed, 2 * speed, moments=np.ones(BLOCKS), **more)
