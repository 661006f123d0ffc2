"""A toy image model and toy decoders with valid traces: what the harness is tested on.

The decoders' codes are a function of the noise alone, as the contract asks; they take a chosen time
and fail where a setting says so.
"""

import gc
import json
import math
import signal
import time
import zlib
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from bench.__main__ import main
from bench.analyse.analyse import analyse
from bench.analyse.run import Run
from bench.prompts import Prompt
from bench.run.contender import Study
from bench.run.study import scores_of_pictures
from bench.store.facts import Findings, read_study
from bench.store.run_folder import read_rows
from decoders.api import (
    Acceptance,
    CodeKind,
    DecoderError,
    Generation,
    ImageModel,
    NumericalError,
    Sampling,
    TextFeatures,
    Trace,
    VerifiedPairs,
)
from decoders.cache import KVCache
from decoders.models.random_weights import RandomTokenizer
from decoders.noise import Noise
from decoders.verify.exact import Exact

VOCAB, LENGTH, LONGEST = 32, 16, 200
SEARCHPATH = f"hydra.searchpath=[file://{Path(__file__).parent / 'conf'}]"
PREPARED: list[tuple[str, int, dict[int, str]]] = []  # (decoder, batch, what is kept) when made
CALLS: list[tuple[str, str, int]] = []  # (decoder, first prompt, batch) of every call, in order


def recorded(folder: Path) -> list[dict[str, Any]]:
    """Every row of a run's folder, those that no longer count too."""
    return [r for path in sorted(folder.glob("rows/*.jsonl")) for r in read_rows(path)]


def forget(folder: Path, **columns: Any) -> int:
    """Takes out the rows with these values; returns how many there were."""
    count = 0
    for path in folder.glob("rows/*.jsonl"):
        lines = path.read_bytes().splitlines(keepends=True)
        left = [x for x in lines if not columns.items() <= json.loads(x).items()]
        path.write_bytes(b"".join(left))
        count += len(lines) - len(left)
    return count


def run_quickly(words: list[str]) -> None:
    """A command in a process of its own, without looking for garbage in all that is loaded, as in
    `tests/conftest.py`."""
    gc.freeze()
    gc.unfreeze = lambda: None
    main(words)


def analysed(
    study: Study, scorer: Any = None, rows: pd.DataFrame | None = None, **findings: Any
) -> Run:
    """What follows from these rows of a study (else its own), its pictures scored."""
    rows = study.rows if rows is None else rows
    names = [variant.name for variant in study.variants]
    scores = scores_of_pictures(scorer, study.path, rows, names)
    found = Findings(scores=scores, **findings)
    return analyse(study.path, rows, read_study(study.path), found)


@dataclass
class FakeTarget:
    """All codes are as likely everywhere."""

    vocab_size: int = VOCAB
    width: int = 4
    length: int = LENGTH
    prefix: int = 2
    barred: Tensor | None = None

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        return KVCache(1, rows, capacity, 1, self.width, torch.float32, torch.device("cpu"))

    def prefill(self, text: TextFeatures, guidance_rows: int, cache: KVCache) -> Tensor:
        return torch.zeros(cache.rows, self.prefix, self.width)

    def forward_codes(self, codes: Tensor, *_: Any) -> Tensor:
        return torch.zeros(*codes.shape, self.width)

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.zeros(*hidden.shape[:-1], self.vocab_size)


class FakeText:
    """Reads ASCII prompts of at most 200 characters."""

    def encode(self, prompts: list[str]) -> TextFeatures:
        for prompt in prompts:
            if not prompt.isascii():
                raise DecoderError(f"not English: {prompt!r}")
            if len(prompt) > LONGEST:
                raise DecoderError(f"{len(prompt)} characters, at most {LONGEST} fit")
        rows = [[0.0] * (LONGEST - len(p)) + [float(ord(c)) for c in p] for p in prompts]
        features = torch.tensor(rows)[..., None]  # [B, P, 1]
        return TextFeatures(features, features[..., 0] > 0)


def prompts_of(text: TextFeatures) -> list[str]:
    """The prompts, spelled by the features."""
    rows = text.features[..., 0].int().tolist()
    return ["".join(chr(c) for c in row if c) for row in rows]


def load_model(device: str = "cpu", dtype: str = "float32", seconds: float = 0.0) -> ImageModel:
    time.sleep(seconds)
    return ImageModel(
        name="fake",
        target=FakeTarget(),
        text=FakeText(),
        tokenizer=RandomTokenizer(torch.linspace(-4, 4, VOCAB)[:, None]),  # a grey square a code
        sampling=Sampling(temperature=1.0, cfg=2.0),
        device=torch.device(device),
        dtype=getattr(torch, dtype),
        weights_sha256={"fake.safetensors": "0" * 64},
    )


def load_prompts(count: int | None, word: str = "scene") -> list[Prompt]:
    every = range(8 if count is None else count)
    return [Prompt(f"p{i}", f"{word} number {i}", "any") for i in every]


class FakeRule(Exact):
    """Moves nothing, and declares that it may."""

    def __init__(self, model: ImageModel, k: int = 4) -> None:
        if k > VOCAB:
            raise DecoderError(f"k must be at most {VOCAB}, the codebook's size, found {k}")

    def test(self, p: Tensor, q: Tensor | None, x: Tensor) -> Acceptance:
        found = super().test(p, q, x)
        return replace(found, bound=found.bound + 0.1)


@dataclass(eq=False)
class FakeLoop:
    """Commits `step` codes a target forward. seconds: of one image at batch 1.

    fail_at: prompts whose text contains this raise; kill_at: SIGINT arrives then, as if the
    user had interrupted; fault_at: CUDA reports the error `fault`. flag: a file whose absence
    disarms all. broken: "build" or "codes".
    """

    model: ImageModel
    _: KW_ONLY
    sampling: Sampling
    proposer: Any
    verifier: Any
    step: int = 1
    seconds: float = 0.0
    fail_at: str = ""
    kill_at: str = ""
    fault_at: str = ""
    fault: str = ""
    flag: str = ""
    broken: str = ""
    label: str = ""

    refills = True

    def __post_init__(self) -> None:
        self.prepared: dict[int, str] = {}  # as a backend that captures steps keeps them
        if self.broken == "build":
            raise RuntimeError("this plug-in cannot be built")

    def generate(
        self, text: TextFeatures, noise: Noise, *, pairs: float = 0, rows: int | None = None
    ) -> Generation:
        prompts = prompts_of(text)
        rows = rows or len(prompts)
        CALLS.append((self.label, prompts[0], len(prompts)))
        if self.prepared.setdefault(rows, "new") == "new":
            self.prepared[rows] = "recorded"
            PREPARED.append((self.label, rows, self.prepared))
        self._misbehave(prompts)
        began, batches = time.perf_counter(), math.ceil(len(prompts) / rows)
        time.sleep(self.seconds * batches)
        codes = self._codes(prompts, noise)
        if self.broken == "codes":
            codes = codes + VOCAB
        trace = self._trace(len(prompts), time.perf_counter() - began)
        trace.idle = 1 - len(prompts) / (rows * batches)
        if pairs and self.verifier is not None:
            trace.pairs = _pairs(math.ceil(pairs), len(prompts))
        return Generation(codes, trace)

    def _misbehave(self, prompts: list[str]) -> None:
        if self.flag and not Path(self.flag).exists():
            return
        if self.fail_at and any(self.fail_at in p for p in prompts):
            raise NumericalError("NaN logits at step 3")
        if self.kill_at and any(self.kill_at in p for p in prompts):
            signal.raise_signal(signal.SIGINT)
        if self.fault_at and any(self.fault_at in p for p in prompts):
            raise torch.AcceleratorError(f"CUDA error: {self.fault}")

    def _codes(self, prompts: list[str], noise: Noise) -> Tensor:
        """[B, L] of the noise; greedy: of the prompts alone."""
        if self.sampling.greedy:
            return torch.tensor([[zlib.crc32(p.encode()) % VOCAB] * LENGTH for p in prompts])
        return (noise.uniform[:, :LENGTH, 0] * VOCAB).long()

    def _trace(self, batch: int, seconds: float) -> Trace:
        """Code 0 comes from the prefill; then `step` codes a forward, the last one a bonus."""
        steps = [0, *(1 + i // self.step for i in range(LENGTH - 1))]
        calls = steps[-1]
        accepted = [steps.count(s) - 1 if self.step > 1 else 0 for s in range(1, calls + 1)]
        kind = [int(CodeKind.TARGET)] + [
            int(CodeKind.DRAFT if self.step > 1 else CodeKind.TARGET) for _ in steps[1:]
        ]

        def row(values: list[Any], dtype: torch.dtype) -> Tensor:
            return torch.tensor([values] * batch, dtype=dtype)

        return Trace(
            kind=row(kind, torch.uint8),
            step=row(steps, torch.int32),
            depth=row([0] * LENGTH, torch.uint8),
            tv_shift=row([0.05] * LENGTH, torch.float32),
            bound=row([0.1] * LENGTH, torch.float32),
            accepted=row(accepted, torch.int16),
            target_calls=torch.full((batch,), calls, dtype=torch.int32),
            drafter_calls=torch.full((batch,), calls if self.step > 1 else 0, dtype=torch.int32),
            seconds={"prefill": seconds / 2, "draft": 0.0, "forward": seconds / 2, "accept": 0.0},
            tree_depth=self.step - 1,
            tree_nodes=self.step - 1,
        )


def _pairs(each: int, batch: int) -> VerifiedPairs:
    """So many of each image, the same ones."""
    p = torch.softmax(torch.randn(each, VOCAB, generator=torch.Generator().manual_seed(0)), -1)
    p = p.repeat(batch, 1)  # [M, V]
    children = torch.arange(2).repeat(len(p), 1)
    image = torch.arange(batch).repeat_interleave(each)
    valid = torch.ones_like(children, dtype=torch.bool)
    return VerifiedPairs(p, None, children, valid, 0 * image, 0 * image, 1, image)
