"""The configuration of a study as frozen dataclasses, and their validation.

Why: Hydra's plain YAML does not catch `seed=abc`; below this file nobody touches a `cfg.` (house
rule 3). `bench.config.compose` makes these from Hydra by `decoders.kinds.validate`, which checks
each field by its annotation.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from bench.errors import EXPLAINED, ConfigError, describe_error, describe_os_error
from decoders.errors import DecoderError
from decoders.kinds import MOST_WHOLE, Amount, Count, Name, NotNegative, Seed, Within, validate
from decoders.spec import DecoderSpec, PartSpec

if TYPE_CHECKING:
    from decoders.api import Sampling

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoaderConfig:
    """Something that is imported by its dotted path and called with keywords: a model, prompts."""

    name: str
    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Any, where: str) -> LoaderConfig:
        """From a group's {name, _target_, keywords...}. Raises DecoderError."""
        kwargs = dict(validate(where, values, dict[str, Any]))
        name = validate(f"{where}.name", kwargs.pop("name", None), str)
        part = PartSpec.of(kwargs, where)
        if part is None:
            raise DecoderError(f"{where}._target_ must name a class or a function, found null")
        return cls(name, part.target, dict(part.kwargs))

    def load(self, **extra: Any) -> Any:
        """`target(**extra, **kwargs)`. Raises DecoderError for an unknown target (nearest names
        shown), for one that cannot be imported, for keywords that it does not take and for values
        that are not of the kind it is annotated with; whatever the target raises is a ConfigError
        as `call`."""
        from decoders.compose import check_keywords, resolve

        target = resolve(self.target)

        def load() -> Any:
            check_keywords(self.name, target, self.kwargs, extra)
            return target(**extra, **self.kwargs)

        return self.call(load)

    def call(self, work: Callable[[], T]) -> T:
        """Returns `work()`, which runs the user's code. What that raises is a ConfigError with its
        name, file and line, unless it explains itself or is the system's."""
        try:
            return work()
        except Exception as error:
            files = isinstance(error, OSError) and describe_os_error(error)
            if isinstance(error, EXPLAINED) or files:  # the command line says what to do
                raise
            log.info("%s raised", self.target, exc_info=True)
            raise ConfigError(
                f"{self.name} ({self.target}) failed: {describe_error(error)}; `python -m bench -v "
                "COMMAND` shows the traceback"
            ) from error

    def require(self, fits: bool, loaded: Any, wanted: str) -> None:
        """Raises ConfigError where what was loaded is not `wanted`."""
        if not fits:
            raise ConfigError(
                f"{self.name} ({self.target}) must return {wanted}, found {type(loaded).__name__}"
            )


@dataclass(frozen=True)
class BackendConfig:
    """Where and how a step runs. dtype is that of weights and activations, not of probabilities;
    execution: `eager`, PyTorch's operators one by one; `compile`, on a processor the project's C++
    operators and all else compiled, on a GPU torch.compile; `graph`, CUDA graphs. Steps are
    compiled or captured in batches that are timed, with `graph` captured in quality batches too."""

    name: str
    device: str
    dtype: Literal["float32", "bfloat16", "float16"]
    threads: Annotated[int, Within(1, 4096)]
    execution: Literal["eager", "compile", "graph"] = "eager"

    def __post_init__(self) -> None:
        if self.execution == "graph" and not self.device.startswith("cuda"):
            raise ConfigError(
                "backend.execution=graph captures CUDA graphs, which needs backend.device=cuda, "
                f"found {self.device}; use backend=cuda_graph, or backend=cpu"
            )


@dataclass(frozen=True)
class SamplingConfig:
    """None: not set here, the model's own setting holds."""

    temperature: NotNegative | None = None
    cfg: NotNegative | None = None
    top_k: Amount | None = None
    top_p: Annotated[float, Within(0, 1, above=True)] | None = None

    def resolve(self, base: T) -> T:
        """A study's settings, or the model's own (`Sampling`), with what is set here over them.
        Raises DecoderError."""
        mine = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        return dataclasses.replace(base, **mine)  # type: ignore[type-var]


@dataclass(frozen=True)
class LatencyProtocol:
    """Decoders interleaved prompt by prompt. prompts 0 switches it off; blocks: into how
    many parts, at most, the prompts are cut, which are spread over the quality protocol: a speed-up
    has an interval from 10 on that start 60 s apart (`metrics.speedup`). spacing: seconds from the
    start of a block to that of the next, at least: the run waits where it is faster. batch: images
    decoded at once: 1 for all figures, larger ones for the table by batch size. requests: images of
    a call in batches, of which the batch's size is decoded at once; the next takes the row of one
    that is done. None: one batch, decoded as a whole. busy: the share of the cores that other
    programs may take while an image is timed (1: any), see `bench.measure.meter`; wait_for_quiet:
    seconds that the run waits for them, 0: not at all."""

    prompts: Amount
    blocks: Count = 20
    spacing: NotNegative = 0.0
    warmup_max: Count = 4
    warmup_tolerance: Annotated[float, Within(0, 1, above=True, below=True)] = 0.1
    busy: Annotated[float, Within(0, 1, above=True)] = 0.1
    wait_for_quiet: NotNegative = 60.0
    batch: list[Annotated[int, Within(1, 2**20)]] = field(default_factory=lambda: [1])
    requests: Count | None = None

    def __post_init__(self) -> None:
        if 1 not in self.batch or len({*self.batch}) < len(self.batch):
            raise ConfigError(
                "latency.batch must hold 1 and any larger sizes, each once, as in "
                f"latency.batch=[1,4,16]; found {self.batch}"
            )
        if self.requests is not None and self.requests < max(self.batch):
            raise ConfigError(
                f"latency.requests={self.requests} do not fill latency.batch={self.batch}; set "
                f"latency.requests={max(self.batch)} or more, best a multiple of each, or null"
            )

    @property
    def block_count(self) -> int:
        """Into how many blocks the prompts are cut, each of one or more; 1 where there are none."""
        return max(1, min(self.blocks, self.prompts))

    @property
    def sizes(self) -> list[int]:
        """Sizes of the batches that are timed."""
        return self.batch if self.prompts else []

    def images(self, size: int) -> int:
        """Images of a timed call of a batch size."""
        return size if size == 1 or self.requests is None else self.requests

    def calls(self, size: int) -> int:
        """Timed calls of a batch size: full ones of the prompts, at least one."""
        return max(self.prompts // self.images(size), 1) if self.prompts else 0


@dataclass(frozen=True)
class QualityProtocol:
    """Batched, one seed for every decoder. images 0: not run. reseeds: how many other seeds the
    baseline has, the ones after the study's; they make the reseed band. margin: points of CLIP
    score that a decoder may lose on AR and still be called not worse."""

    images: Amount
    batch: Count = 32
    pairs: Amount = 128
    reseeds: Annotated[int, Within(0, 1000)] = 1
    margin: Annotated[float, Within(0, above=True)] = 1.0

    @property
    def sizes(self) -> Collection[int]:
        """Sizes that its batches may have: the last ones are smaller, and so are all where the
        memory does not hold them."""
        return range(1, self.batch + 1) if self.images else ()


@dataclass(frozen=True)
class DecoderEntry:
    """A decoder of a study. `baseline`: speed-ups are measured against it; `expect`: the verdict
    that the exactness gate should come to (None: anything but `broken`)."""

    name: str
    spec: DecoderSpec
    sampling: SamplingConfig
    baseline: bool = False
    expect: Literal["exact", "relaxed", "broken"] | None = None


@dataclass(frozen=True)
class StudyConfig:
    """Everything a run needs to know, resolved."""

    name: Name
    run_dir: Name
    seed: Seed
    model: LoaderConfig
    backend: BackendConfig
    prompts: LoaderConfig
    latency: LatencyProtocol
    quality: QualityProtocol
    metric: LoaderConfig | None
    gate: bool = True
    report: bool = True
    keep_images: bool = True
    retry_failed: bool = False
    decoders: tuple[DecoderEntry, ...] = ()
    version: Count = 1  # of the study; another one is another experiment
    replicate: Annotated[int, Within(0, 1_000_000)] = 0  # of its prompts and seeds

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.decoders]
        plain = [file_name(name) for name in names]
        twice = sorted({n for n, one in zip(names, plain, strict=True) if plain.count(one) > 1})
        if twice:
            why = " (they name files, where case may not count)" if len(twice) > 1 else ""
            raise ConfigError(
                f"decoders named twice: {', '.join(twice)}{why}; give one of them another `name:`"
            )
        if not self.latency.prompts and not self.quality.images:
            raise ConfigError("latency.prompts and quality.images are both 0: nothing to run")
        if self.reseeds.stop - 1 > MOST_WHOLE:
            raise ConfigError(
                f"seed={self.seed} leaves no room below 2**63 for quality.reseeds="
                f"{self.quality.reseeds}, whose seeds follow it"
                + f", in replicate={self.replicate}" * bool(self.replicate)
                + "; choose a smaller seed"
            )

    @property
    def first_seed(self) -> int:
        """Of all decoders: no two replicates share one."""
        return self.seed + self.replicate * (1 + self.quality.reseeds)

    @property
    def reseeds(self) -> range:
        """The other seeds of the baseline."""
        return range(self.first_seed + 1, self.first_seed + 1 + self.quality.reseeds)

    @property
    def prompts_needed(self) -> int:
        """How many prompts the largest of its protocols decodes."""
        calls = map(self.latency.images, self.latency.sizes)
        return max(self.latency.prompts, *calls, self.quality.images)

    def measured(self) -> dict[str, Any]:
        """The settings that decide what the rows hold: all but where they go and what is made of
        them afterwards (report, gates, quality metrics)."""
        plain = dataclasses.asdict(self)
        for key in ("run_dir", "retry_failed", "report", "gate", "metric"):
            del plain[key]
        # When and which rows count is no part of what they hold.
        for key in ("busy", "wait_for_quiet", "spacing"):
            del plain["latency"][key]
        for entry in plain["decoders"]:
            del entry["expect"]
        if not self.replicate:  # as in runs of versions that had none
            del plain["replicate"]
        return plain

    @property
    def hash(self) -> str:
        """The hash of `measured()`, 16 hex digits: runs with equal hashes may share a folder."""
        return digest(self.measured())


@dataclass(frozen=True)
class DecoderVariant:
    """A decoder of a study with its sampling resolved."""

    entry: DecoderEntry
    sampling: Sampling

    @property
    def name(self) -> str:
        return self.entry.name


def variants(config: StudyConfig, model_sampling: Sampling) -> list[DecoderVariant]:
    """The decoders in the study's order. Raises DecoderError on impossible sampling settings."""
    return [DecoderVariant(e, e.sampling.resolve(model_sampling)) for e in config.decoders]


def file_name(name: str) -> str:
    """A name as a file system may take it: some ignore case, and how an accent is written."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def digest(value: Any) -> str:
    """16 hex digits of the SHA-256 of a JSON value with sorted keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
