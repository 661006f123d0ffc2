"""What would make an AR step faster on this GPU: ways of compiling it, one after the other.

    .venv/bin/python scripts/gpu_trials.py [trials=base,pdl] [out=DIR] [model=NAME]

Prints milliseconds of a captured step for each trial, and writes its kernels into DIR
(results/gpu_trials): name, launches, microseconds, and the gaps between them. A trial that fails
says why, and the next one goes on. What gains belongs into CUDA_OPTIONS of
decoders/execution/compiled.py, or into the nets.

Without a GPU it runs on the processor, to be tried: its times then say nothing of a card.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from bench.config.compose import compose_study
from bench.config.schema import variants
from bench.errors import EXPLAINED
from bench.measure.device import prepare
from bench.prompts import load_prompts
from bench.run.contender import build, load_model
from decoders.execution import compiled
from decoders.execution.gpu import card_fault
from decoders.noise import Noise

STEPS, PROFILED = 100, 3
FEW = 4  # rows that are multiplied one by one
LINEAR = F.linear


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product of few rows as sums that share the reading of a weight, without a matrix unit."""
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) > FEW or bias is not None:
        return LINEAR(x, weight, bias)
    sums = [(row.float() * weight.float()).sum(-1) for row in rows.unbind(0)]
    return torch.stack(sums).to(x.dtype).view(*x.shape[:-1], -1)


SPLIT_K = {"triton.num_decompose_k_splits": 8, "triton.decompose_k_threshold": 1}
# By name: options of Inductor, and what products of matrices are.
TRIALS: dict[str, tuple[dict[str, Any], Callable[..., Tensor]]] = {
    "base": ({}, LINEAR),
    "pdl": ({"triton.enable_pdl": True}, LINEAR),  # the next kernel starts while one ends
    "rows": ({}, few_rows),
    "rows_pdl": ({"triton.enable_pdl": True}, few_rows),
    "split_k": (SPLIT_K, LINEAR),
    "no_combo": ({"combo_kernels": False}, LINEAR),
    "descent": ({"coordinate_descent_tuning": True}, LINEAR),
    "libraries": ({"max_autotune": False}, LINEAR),
}


def measured(words: list[str], folder: Path, name: str) -> str:
    """Milliseconds of AR's step compiled as a trial says; its kernels go to a file."""
    config = compose_study(["study=gpu_costs", "decoders=[ar]", *words])
    model = load_model(config, prepare(config.backend), timed=(1,))
    decoder: Any = build(model, variants(config, model.sampling)[0])
    caption = load_prompts(config.prompts, 1)[0].text
    text = model.text.encode([caption])
    noise = Noise.for_prompts(0, [caption], model.target.length).to(model.device)
    cuda = model.device.type == "cuda"

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    began = time.perf_counter()
    run = decoder.execution.begin(decoder, decoder.begin(text, noise))
    decoder.execution.step(decoder, run)
    wait()
    compiling, times = time.perf_counter() - began, []
    for _ in range(min(STEPS, model.target.length - PROFILED - 3)):
        began = time.perf_counter()
        decoder.execution.step(decoder, run)
        wait()
        times.append(1e3 * (time.perf_counter() - began))
    kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda]
    with profile(activities=kinds) as watched:
        for _ in range(PROFILED):
            decoder.execution.step(decoder, run)
        wait()
    (folder / f"{name}.txt").write_text(kernels(watched, cuda))
    path = ", ".join(f"{phase} {way}" for phase, way in run.path.items())
    return (
        f"{statistics.median(times):8.3f} ms a step (least {min(times):.3f}), "
        f"begun in {compiling:.0f} s, {path}"
    )


def kernels(watched: Any, cuda: bool) -> str:
    """Time by kernel, and of a card what lies between kernels."""
    lines = [watched.key_averages().table(sort_by="cuda_time_total" if cuda else "cpu_time_total")]
    ran = [event for event in watched.events() if "CUDA" in str(event.device_type)]
    times = sorted((event.time_range.start, event.time_range.end) for event in ran)
    gaps = [max(0.0, after[0] - before[1]) for before, after in pairwise(times)]
    if gaps:
        lines.append(
            f"{len(times) / PROFILED:.0f} launches a step; gaps: median "
            f"{statistics.median(gaps):.2f} us, together {sum(gaps) / PROFILED:.0f} us a step"
        )
    return "\n".join(lines)


@torch.inference_mode()
def main(words: list[str]) -> None:
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        return
    if wrong := [word for word in words if "=" not in word]:
        sys.exit(f"error: expected words such as trials=base,pdl, found {wrong}")
    settings = dict(word.split("=", 1) for word in words)
    if fault := card_fault():
        print(f"{fault}: the embedded model on the processor, to try the script")
        settings = {"backend": "cpu", "model": "tiny", "prompts": "scenes"} | settings
    folder = Path(settings.pop("out", "results/gpu_trials"))
    chosen = settings.pop("trials", ",".join(TRIALS)).split(",")
    if unknown := [name for name in chosen if name not in TRIALS]:
        sys.exit(f"error: unknown trials {unknown}; known: {', '.join(TRIALS)}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        options, linear = TRIALS[name]
        changed = mock.patch.dict(compiled.CUDA_OPTIONS, options)
        with changed, mock.patch("torch.nn.functional.linear", linear):
            torch._dynamo.reset()
            try:
                line = measured([f"{k}={v}" for k, v in settings.items()], folder, name)
            except compiled.COMPILE_ERRORS as error:
                line = f"failed: {str(error).strip().partition(chr(10))[0]}"
        print(f"{name:>10}  {line}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (*EXPLAINED, OSError) as error:
        sys.exit(f"error: {error}")
