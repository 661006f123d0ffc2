"""A made-up run folder: eight compositions at temperature 1, three at temperature 0, with traces.

Nothing here is a measurement. Accepted lengths are drawn from a geometric law whose rate is the
decoder's, so that the report has plausible traces to draw; `summary.csv` holds numbers that tests
look for again. The chain decodes AR's codes but for code 40. Prompt 1 is a script.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image

from bench.judge.fairness import ROOFLINE, ROOFLINE_COLUMNS
from bench.judge.paired import CLIP_COLUMNS, CLIP_PAIRS
from bench.measure.machine_rates import MACHINE, MachineRates
from bench.records import columns as records
from bench.records.folder import write_parquet

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


DECODERS = (
    Made("ar"),
    Made("sd_chain", "exact", "chain(depth=4)", 4, 0.55, 2.06, 21.47, 31.17),
    Made("eagle1", "exact", "static(25 nodes)", 5, 0.52, 2.36, 21.31, 31.23),
    Made("eagle2", "exact", "dynamic(58 nodes)", 5, 0.62, 1.98, 21.52, 31.19),
    Made(
        "lantern", "lantern(k=100, delta=0.2, residual=paper)", "dynamic(58 nodes)", 5, 0.86, 1.02,
        21.93, 30.98, bound=0.2, output_tv=0.09, verdict="relaxed",
    ),
    Made(
        "lantern_released", "lantern(k=100, delta=0.2, residual=released)", "dynamic(58 nodes)", 5,
        0.88, 0.98, 23.9, 30.4, bound=0.2, output_tv=0.41, verdict="broken (0.41 > 0.20)",
    ),
    Made(
        "lantern_pp", "lantern_pp(k=100, lam=5, residual=paper)", "static(57 nodes)", 5, 0.83, 0.91,
        21.75, 31.07, bound=0.24, output_tv=0.07, verdict="relaxed",
    ),
    Made(
        "lantern_chain", "lantern(k=100, delta=0.2, residual=paper)", "chain(depth=4)", 4, 0.8,
        error="NumericalError: NaN logits at code 17 | row 3 <cond> of 2; check the weights_file",
    ),
    Made("ar_greedy", temperature=0.0, fid=33.1, clip=30.5),
    Made("eagle2_greedy", "exact", "dynamic(58 nodes)", 5, 0.7, 1.71, 33.1, 30.5, 0.0),
    Made(
        "lantern_greedy", "lantern(k=100, delta=0.2, residual=paper)", "dynamic(58 nodes)", 5, 0.87,
        1.0, 34.2, 30.3, 0.0, bound=0.2, output_tv=0.0, verdict="relaxed",
    ),
)  # fmt: skip
RESEED_FID, RESEED_CLIP = 21.66, 31.11
RATES = MachineRates("Example CPU", 20e9, 1034.6e9)
SHARED = (
    "study", "model", "decoder", "loop", "drafter", "acceptance", "tree", "backend", "device",
    "dtype", "temperature", "cfg",
)  # fmt: skip


def trace(made: Made, rng: np.random.Generator) -> dict[str, Any]:
    """The list columns and counts of one image: accepted lengths are geometric, cut by the tree and
    by the end of the image."""
    accepted, room = [], LENGTH - 1
    while room > 0:
        accepted.append(min(int(rng.geometric(1 - made.rate)) - 1, made.depth, room))
        room -= accepted[-1] + 1
    steps, drafts = len(accepted), made.depth > 0
    relaxed = made.bound > 0
    return {
        "accepted": accepted,
        "kind": rng.integers(0, 5 if relaxed else 2 if drafts else 1, LENGTH).tolist(),
        "depth": [0] * LENGTH,
        "step": [0] * LENGTH,
        "tv_shift": (made.bound * rng.random(LENGTH)).tolist(),
        "bound": [made.bound] * LENGTH,
        "tv_output": [made.output_tv] * 3 * drafts,
        "tv_declared_bound": [made.bound] * 3 * drafts,
        "tv_output_bound": [made.output_tv + 0.05] * 3 * drafts,
        "mal": (LENGTH - 1) / steps,
        "mal_no_bonus": sum(accepted) / steps + (not drafts),
        "mal_expected": 1.5 if drafts else math.nan,
        "nfe": steps,
        "drafter_calls": steps * made.depth,
        "tree_depth": made.depth,
        "tree_nodes": made.depth * 10,
    }


def row(made: Made, protocol: str, index: int, seed: int, image: str) -> dict[str, Any]:
    """One record in the schema."""
    rng = np.random.default_rng([seed, index, *made.name.encode()])
    line = {
        "schema_version": records.SCHEMA_VERSION, "study": "synthetic", "protocol": protocol,
        "model": "tiny", "decoder": made.name, "loop": "speculative" if made.depth else "ar",
        "drafter": "eagle" if made.depth else "none", "tree": made.tree,
        "acceptance": made.acceptance, "backend": "eager", "device": "cpu", "dtype": "bfloat16",
        "temperature": made.temperature, "cfg": 2.0, "top_k": 0, "top_p": 1.0,
        "prompt_index": index, "prompt_id": f"scene-{index}", "seed": seed,
        "prompt": SCRIPT if index == 1 else f"ring {index} on a cloudy background, lit twice",
        "category": "two objects", "batch": 1, "block": index // 2,
        "status": "ok", "error": "",
        "git_commit": "0123456789abcdef", "git_dirty": False, "versions": '{"torch": "2.9.0"}',
        "cpu": "Example CPU, 2 cores", "gpu": "", "threads": 2, "config_hash": "c0ffee",
        "code": "aa11",
        "started_at": f"2025-01-01T00:{index:02d}:00Z", **records.empty_measures(),
    }  # fmt: skip
    if made.error:
        return line | {"status": "failed", "error": made.error}
    line |= trace(made, rng) | {"path": "", "image": image, "peak_memory_mb": 912.0}
    source = b"ar" if made.name == "sd_chain" else made.name.encode()
    codes = np.random.default_rng([seed, index, *source]).integers(0, 1024, LENGTH)
    codes[40] += made.name == "sd_chain"
    line["codes"] = codes.tolist()
    if protocol == "latency":
        total = made.seconds * rng.normal(1, 0.04)
        shares = (0.01, 0.16, 0.62, 0.13) if made.depth else (0.01, 0.0, 0.88, 0.04)
        names = ("prefill", "draft", "forward", "accept")
        line |= {f"seconds_{n}": total * s for n, s in zip(names, shares, strict=True)}
        line |= {"seconds_text": 0.006, "seconds_vq": 0.03, "seconds_total": total}
    return line


def ends(column: str, value: float, less: float, more: float) -> dict[str, float]:
    """A figure with its interval."""
    return {column: value, f"{column}_lo": value - less, f"{column}_hi": value + more}


def summary_row(made: Made, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary row of a decoder; failed ones have no figures."""
    base = next(d for d in DECODERS if d.temperature == made.temperature)
    line: dict[str, Any] = {c.name: math.nan for c in records.SUMMARY if c.type == "float"}
    line |= {key: rows[0][key] for key in SHARED}
    line |= {"fid_features": "", "exactness": "", "status": "failed"}
    if made.error:
        return line
    for name in ("mal", "mal_no_bonus", "mal_expected", "nfe"):
        line[name] = float(np.mean([r[name] for r in rows]))
    speed, moved = base.seconds / made.seconds, np.concatenate([r["tv_shift"] for r in rows])
    line |= ends("speedup", speed, speed * 0.035, speed * 0.035)
    line |= ends("fid", made.fid, 0.45, 0.5) | ends("fid_debiased", made.fid - 3, 0.45, 0.5)
    line |= ends("kid", 0.0021, 0.0009, 0.0009) | ends("clip", made.clip, 0.12, 0.13)
    line |= ends("tv_output", made.output_tv, 0.01, 0.01)
    return line | {
        "n_latency": 20, "latency_mean_s": made.seconds, "latency_p50_s": made.seconds * 0.99,
        "latency_p95_s": made.seconds * 1.07, "speedup_blocks": 10, "speedup_least": speed * 0.9,
        "speedup_greatest": speed * 1.1, "n_quality": 256, "fid_features": "scenes-clip",
        "precision": 0.71, "recall": 0.655, "tv_bound": made.bound, "tv_shift_mean": moved.mean(),
        "tv_shift_max": moved.max(), "tv_tested": made.output_tv,
        "tv_output_bound": made.output_tv + 0.05, "tv_declared_bound": made.bound,
        "exactness": made.verdict, "peak_memory_mb": 912.0, "status": "ok",
    }  # fmt: skip


def clip_pair(made: Made) -> tuple[object, ...]:
    """The mean difference of its CLIP scores to AR's, over 256 prompts."""
    base = next(d for d in DECODERS if d.temperature == made.temperature)
    less = made.clip - base.clip
    return made.name, base.name, 1, less, less - 0.12, less + 0.12, 1.0, 256


def reseed_row(ar: dict[str, Any]) -> dict[str, Any]:
    """AR with a second seed: quality figures only."""
    speed = [name for name in ar if name.startswith(("latency", "speedup", "mal", "nfe"))]
    line = ar | dict.fromkeys([*speed, "n_latency"], math.nan) | {"decoder": "ar (reseed)"}
    return line | ends("fid", RESEED_FID, 0.45, 0.5) | ends("clip", RESEED_CLIP, 0.12, 0.13)


def picture(folder: Path, relative: str, rng: np.random.Generator) -> None:
    """A 64x64 image of coloured squares."""
    pixels = rng.integers(0, 256, (8, 8, 3), np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def roofline_line(made: Made) -> dict[str, Any]:
    """Its line of roofline.csv: an AR step takes 10 floors, a forward over a draft 1.5."""
    part, codes, ms, over = ("forward", 59, 3.0, 1.5) if made.depth else ("ar", 1, 8.25, 10.0)
    line = dict.fromkeys(ROOFLINE_COLUMNS, math.nan) | {
        "decoder": made.name, "codes": codes, "images": 20, "note": "", "ar_bytes": 16.5e6,
        "ar_operations": 30e6, "bytes_per_s": 20e9, "operations_per_s": 300e9,
    }  # fmt: skip
    for name in (part, "step"):
        line |= {f"{name}_ms": ms, f"{name}_floor_ms": ms / over, f"{name}_over_floor": over}
    return line | ({"draft_ms": 0.7, "accept_share": 0.125} if made.depth else {})


def write_run(folder: Path, decoders: tuple[Made, ...] = DECODERS, prompts: int = 20) -> Path:
    """Writes the run folder."""
    rows, summary = [], []
    for made in decoders:
        mine = []
        for index in range(prompts):
            for protocol in ("latency", "quality"):
                image = f"images/{made.name}-0/{protocol}/{protocol}-0-{index}.png"
                mine.append(row(made, protocol, index, 0, image))
                if not made.error and protocol == "quality":
                    picture(folder, image, np.random.default_rng([index, len(summary)]))
        rows += mine
        summary.append(summary_row(made, mine))
        if made.name == "ar":
            summary.append(reseed_row(summary[-1]))
            rows += [row(made, "reseed", index, 1, "") for index in range(prompts)]
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(folder / "records.parquet", pa.Table.from_pylist(rows, schema=records.SCHEMA))
    measured = [made for made in decoders if not made.error]
    differences = pd.DataFrame([*map(clip_pair, measured)], columns=CLIP_COLUMNS)
    floors = pd.DataFrame([*map(roofline_line, measured)], columns=ROOFLINE_COLUMNS)
    tables = {"summary.csv": pd.DataFrame(summary), CLIP_PAIRS: differences, ROOFLINE: floors}
    for name, table in tables.items():
        table.to_csv(folder / name, index=False)
    (folder / MACHINE).write_text(json.dumps(asdict(RATES)))
    return folder
