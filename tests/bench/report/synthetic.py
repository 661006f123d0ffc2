"""A made-up run folder: eight compositions at temperature 1, three at temperature 0, with traces.

Nothing here is a measurement. Accepted lengths are drawn from a geometric law whose rate is the
decoder's, so that the report has plausible traces to draw; `made_run` has numbers that tests look
for again. The chain decodes AR's codes but for code 40. Prompt 1 is a script.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image

from bench.analyse.analyse import load
from bench.analyse.fairness import ROOFLINE_COLUMNS
from bench.analyse.figures import Value
from bench.analyse.paired import CLIP_LESS
from bench.analyse.run import Entry, Role, Run
from bench.analyse.tables import tables_of
from bench.measure.roofline import MachineRates
from bench.store.columns import ROW, SCHEMA, SCHEMA_VERSION
from bench.store.facts import Findings, Verdict, write_findings
from bench.store.run_folder import write_parquet
from metrics.speedup import Speedup
from metrics.stats import Interval

LENGTH = 256
SCRIPT = "<script>document.title = 'taken over'</script> & a \"ring\""


@dataclass(frozen=True)
class Made:
    """One decoder to make up."""

    name: str
    acceptance: str = "none"
    tree: str = "none"
    depth: int = 0
    rate: float = 0.0  # chance to accept one more draft
    seconds: float = 2.4
    fid: float = 21.4
    clip: float = 31.2
    temperature: float = 1.0
    bound: float = 0.0
    output_tv: float = 0.0
    verdict: str = "exact"
    error: str = ""


DYNAMIC, STATIC = "dynamic(58 nodes)", "static(57 nodes)"
LANTERN = "lantern(k=100, delta=0.2, residual={})".format
DECODERS = (
    Made("ar"),
    Made("sd_chain", "exact", "chain(depth=4)", 4, 0.55, 2.06, 21.47, 31.17),
    Made("eagle1", "exact", "static(25 nodes)", 5, 0.52, 2.36, 21.31, 31.23),
    Made("eagle2", "exact", DYNAMIC, 5, 0.62, 1.98, 21.52, 31.19),
    Made("lantern", LANTERN("paper"), DYNAMIC, 5, 0.86, 1.02, 21.93, 30.98, 1.0, 0.2, 0.09,
         "relaxed"),
    Made("lantern_released", LANTERN("released"), DYNAMIC, 5, 0.88, 0.98, 23.9, 30.4, 1.0, 0.2,
         0.41, "broken"),
    Made("lantern_pp", "lantern_pp(k=100, lam=5, residual=paper)", STATIC, 5, 0.83, 0.91, 21.75,
         31.07, 1.0, 0.24, 0.07, "relaxed"),
    Made("lantern_chain", LANTERN("paper"), "chain(depth=4)", 4, 0.8,
         error="NumericalError: NaN logits at code 17 | row 3 <cond> of 2; check the weights_file"),
    Made("ar_greedy", temperature=0.0, fid=33.1, clip=30.5),
    Made("eagle2_greedy", "exact", DYNAMIC, 5, 0.7, 1.71, 33.1, 30.5, 0.0),
    Made("lantern_greedy", LANTERN("paper"), DYNAMIC, 5, 0.87, 1.0, 34.2, 30.3, 0.0, 0.2, 0.0,
         "relaxed"),
)  # fmt: skip
DETAIL = "image 2 has other codes, from place 8 on."
RESEED_FID, RESEED_CLIP = 21.66, 31.11
RATES = MachineRates(20e9, 1034.6e9)


def row(made: Made, protocol: str, index: int, seed: int, image: str) -> dict[str, Any]:
    """One row. Accepted lengths are cut by the tree and by the end of the image."""
    rng = np.random.default_rng([seed, index, *made.name.encode()])
    line = {column.name: column.empty for column in ROW} | {
        "schema_version": SCHEMA_VERSION, "study": "synthetic", "protocol": protocol,
        "model": "tiny", "decoder": made.name, "tree": made.tree, "acceptance": made.acceptance,
        "device": "cpu", "dtype": "bfloat16", "temperature": made.temperature, "cfg": 2.0,
        "prompt_index": index, "seed": seed, "batch": 1, "block": index // 2, "status": "ok",
        "prompt": SCRIPT if index == 1 else f"ring {index} on a cloudy background, lit twice",
        "git_commit": "0123456789abcdef", "versions": '{"torch": "2.9.0"}', "threads": 2,
        "cpu": "Example CPU, 2 cores", "config_hash": "c0ffee",
        "started_at": f"2026-01-01T00:{index // 2:02}:00+00:00",
    }  # fmt: skip
    if made.error:
        return line | {"status": "failed", "error": made.error}
    accepted, room = [], LENGTH - 1
    while room > 0:
        accepted.append(min(int(rng.geometric(1 - made.rate)) - 1, made.depth, room))
        room -= accepted[-1] + 1
    kinds = 5 if made.bound else 2 if made.depth else 1
    same = b"ar" if made.name == "sd_chain" else made.name.encode()
    codes = np.random.default_rng([seed, index, *same]).integers(0, 1024, LENGTH)
    codes[40] += made.name == "sd_chain"
    line |= {
        "accepted": accepted, "kind": rng.integers(0, kinds, LENGTH).tolist(),
        "codes": codes.tolist(), "tv_shift": (made.bound * rng.random(LENGTH)).tolist(),
        "bound": [made.bound] * LENGTH, "mal": (LENGTH - 1) / len(accepted),
        "nfe": len(accepted), "tree_depth": made.depth, "image": image,
    }  # fmt: skip
    if protocol == "latency":
        total = made.seconds * rng.normal(1, 0.04)
        shares = (0.01, 0.16, 0.62, 0.13) if made.depth else (0.01, 0.0, 0.88, 0.04)
        names = ("prefill", "draft", "forward", "accept")
        line |= {f"seconds_{n}": total * s for n, s in zip(names, shares, strict=True)}
        line |= {"seconds_text": 0.006, "seconds_vq": 0.03, "seconds_total": total}
    return line


def figures_of(made: Made) -> dict[str, Value]:
    """Its made-up figures, in place of those of its rows; failed ones have none."""
    base = next(d for d in DECODERS if d.temperature == made.temperature)
    speed = base.seconds / made.seconds
    reach = 0.035 * speed if made.depth else 0.0  # AR's own is 1 by definition
    return {
        "latency_mean_s": made.seconds, "n_latency": 20.0, "n_quality": 256.0,
        "speedup": Interval(speed, speed - reach, speed + reach), "speedup_blocks": 10.0,
        "speedup_least": speed * 0.9, "speedup_greatest": speed * 1.1,
        "fid": Interval(made.fid, made.fid - 0.45, made.fid + 0.5), "fid_features": "scenes-clip",
        "fid_debiased": Interval(made.fid - 3, made.fid - 3.45, made.fid - 2.5),
        "kid": Interval(0.0021, 0.0012, 0.003),
        "clip": Interval(made.clip, made.clip - 0.12, made.clip + 0.13),
        "tv_output": Interval(made.output_tv, made.output_tv - 0.01, made.output_tv + 0.01),
        "tv_output_bound": made.output_tv + 0.05, "tv_tested": made.output_tv,
        "tv_declared_bound": made.bound, "tv_bound": made.bound, "exactness": made.verdict,
        "peak_memory_mb": 912.0,
    }  # fmt: skip


def timed_ratio(speedup: Interval) -> Speedup:
    """A speed-up of ten blocks with this interval."""
    error = math.log(speedup.hi / speedup.lo) / 2 / 1.96
    return Speedup(speedup.value, (error**2, 1e6), blocks=10)


def clip_less(made: Made) -> dict[str, float]:
    """The mean difference of its CLIP scores to AR's, over 256 prompts."""
    base = next(d for d in DECODERS if d.temperature == made.temperature)
    less = made.clip - base.clip
    return {
        CLIP_LESS: less, f"{CLIP_LESS}_lo": less - 0.12, f"{CLIP_LESS}_hi": less + 0.12,
        f"{CLIP_LESS}_sd": 1.0, "clip_images": 256,
    }  # fmt: skip


def roofline_line(made: Made) -> dict[str, Any]:
    """Its line of roofline.csv: an AR step takes 10 floors, a forward over a draft 1.5."""
    codes, ms, over = (59, 3.0, 1.5) if made.depth else (1, 8.25, 10.0)
    line = dict.fromkeys(ROOFLINE_COLUMNS, math.nan) | {
        "decoder": made.name, "codes": codes, "images": 20, "note": "", "ar_bytes": 16.5e6,
        "ar_operations": 30e6, "bytes_per_s": 20e9, "operations_per_s": 300e9,
    }  # fmt: skip
    for name in ("forward", "step"):
        line |= {f"{name}_ms": ms, f"{name}_ar_steps": ms / 8.25, f"{name}_over_floor": over}
    line["forward_floor_ms"] = ms / over
    return line | ({"draft_ms": 0.7} if made.depth else {})


def write_run(folder: Path, decoders: tuple[Made, ...] = DECODERS, prompts: int = 20) -> Path:
    """Writes the facts of a run; every quality image has a picture of 8 x 8 pixels."""
    rows = []
    for number, made in enumerate(decoders):
        mine = []
        for index in range(prompts):
            image = f"images/{made.name}/quality/{index}.png"
            mine += [row(made, name, index, 0, image) for name in ("latency", "quality")]
            if not made.error:
                pixels = np.random.default_rng([index, number]).integers(0, 256, (8, 8, 3))
                (folder / image).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / image)
        rows += mine
        if made.name == "ar":
            rows += [row(made, "reseed", index, 1, "") for index in range(prompts)]
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(folder / "records.parquet", pa.Table.from_pylist(rows, schema=SCHEMA))
    entries = [{"name": made.name, "baseline": made.acceptance == "none"} for made in decoders]
    (folder / "study.json").write_text(json.dumps({"config": {"decoders": entries}}))
    gate = {made.name: Verdict(made.verdict, DETAIL) for made in decoders}
    write_findings(folder, Findings(machine=RATES, gate=gate))
    return folder


def made_run(folder: Path, decoders: tuple[Made, ...] = DECODERS, prompts: int = 20) -> Run:
    """The run of such a folder, with made-up figures in place of those of its rows."""
    run = load(write_run(folder, decoders, prompts))
    of = {made.name: made for made in decoders if not made.error}

    def change(entry: Entry) -> Entry:
        if entry.role is Role.RESEED:
            fid, clip = Interval(RESEED_FID, 21.21, 22.16), Interval(RESEED_CLIP, 30.99, 31.24)
            return replace(entry, figures={**entry.figures, "fid": fid, "clip": clip,
                                           "kid": Interval(0.0021, 0.0012, 0.003)})  # fmt: skip
        if entry.name not in of:  # it failed, and the gate too
            return replace(entry, figures={**entry.figures, "exactness": ""})
        line = replace(entry.line, clip_less=clip_less(of[entry.name]))
        figures = figures_of(of[entry.name]) | {CLIP_LESS: line.clip_difference}
        line.__dict__["speedup"] = timed_ratio(figures["speedup"])
        return replace(entry, line=line, figures={**entry.figures, **figures})

    titles = {"fid_name": "FID (scenes-clip)", "clip_name": "CLIP (scenes)"}
    sections = [replace(s, entries=[*map(change, s.entries)], **titles) for s in run.sections]
    roofline = pd.DataFrame([*map(roofline_line, of.values())], columns=ROOFLINE_COLUMNS)
    run = replace(run, sections=sections, fairness={})
    return replace(run, tables=tables_of(run, roofline=roofline, clip_pairs=pd.DataFrame()))


def altered(run: Run, name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Run:
    """The run with other rows of one decoder."""

    def changed(entry: Entry) -> Entry:
        line = replace(entry.line, rows=change(entry.rows))
        return replace(entry, line=line) if entry.name == name else entry

    sections = [replace(s, entries=[*map(changed, s.entries)]) for s in run.sections]
    return replace(run, sections=sections)
