"""`python -m bench gpu-check [out=DIR] [stages=a,b]`: the first half hour on an NVIDIA card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.console import complain, say
from bench.errors import BenchError, ConfigError, unknown
from bench.gpu_check.run import run_stages
from bench.gpu_check.stage import FAILED, Stage, Verdict
from bench.gpu_check.stages import STAGES
from bench.gpu_check.write import VERDICTS, save, shown
from bench.os_errors import ready_folder

OUT = Path("results/gpu_check")
ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    "gpu-check needs an NVIDIA card of compute capability 8.0 or newer (Ampere) with 8 GB, or 30 "
    "GB for the 7B stages, its driver, and a CUDA build of torch; {found}. `nvidia-smi` must list "
    "the card, and CUDA_VISIBLE_DEVICES must not hide it"
)


def cmd_gpu_check(words: Sequence[str]) -> int:
    """Runs the stages and writes one folder with a verdict for each. 1 where one failed."""
    out, stages = read_words(words)
    machine, memory_gb = card()
    if not (ROOT / "tests" / "gpu").is_dir():
        raise BenchError(
            f"gpu-check runs tests/gpu, which {ROOT} lacks; use a clone of the project"
        )
    ready_folder(out)
    if (out / VERDICTS).exists():
        raise BenchError(
            f"{out} holds an earlier check, which this one would mix with; name another folder: "
            "out=DIR"
        )

    def done(verdicts: list[Verdict]) -> None:
        save(out, machine, verdicts)
        tell(verdicts[-1])

    say(f"{machine['gpu']}: {len(stages)} stages, about half an hour, into {out}")
    verdicts = run_stages(stages, out.resolve(), memory_gb, done, ROOT)
    say(f"saved: {out}/README.md; send the whole folder (docs/gpu.md)")
    return int(any(verdict.stops for verdict in verdicts))


def read_words(words: Sequence[str]) -> tuple[Path, list[Stage]]:
    """The folder and the stages. Raises ConfigError on another word and an unknown stage."""
    out, stages = OUT, list(STAGES)
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("out", "stages") or not value:
            raise ConfigError(f"gpu-check takes out=DIR and stages=NAME,NAME; found {word!r}")
        if name == "out":
            out = Path(value).expanduser()
            continue
        known = {stage.name: stage for stage in STAGES}
        wanted = value.strip("[]").split(",")
        wrong = next((name for name in wanted if name not in known), None)
        if wrong is not None:
            raise ConfigError(unknown("stage", wrong, known))
        stages = [stage for stage in STAGES if stage.name in wanted]
    return out, stages


def card() -> tuple[dict[str, str], float]:
    """What decides the times here, and the card's memory in GB. Raises BenchError where there is
    no card that can run the stages."""
    import torch

    from bench.measure.device import provenance

    count = 0 if torch.version.hip is not None else torch.cuda.device_count()
    if not count:
        build = "a build without CUDA" if torch.version.cuda is None else "a CUDA build"
        raise BenchError(NEEDED.format(found=f"torch {torch.__version__} ({build}) sees none"))
    device = torch.device("cuda")
    try:
        major, minor = torch.cuda.get_device_capability(device)
    except RuntimeError as error:  # a driver that is too old, or a card that does not answer
        found = f"the card cannot be used: {str(error).strip().partition(chr(10))[0]}"
        raise BenchError(NEEDED.format(found=found)) from error
    made = provenance(device)
    if major < 8:
        found = f"{made.gpu} has {major}.{minor}"
        raise BenchError(NEEDED.format(found=found))
    memory = torch.cuda.get_device_properties(device).total_memory / 1e9
    commit = made.git_commit + (" and changes" if made.git_dirty else "")
    machine = {"gpu": made.gpu, "memory_gb": f"{memory:.0f}", "capability": f"{major}.{minor}"}
    return machine | {"cpu": made.cpu, "commit": commit} | made.versions, memory


def tell(verdict: Verdict) -> None:
    """One stage, to the terminal."""
    line = f"{verdict.stage}: {verdict.verdict} ({verdict.seconds:.0f} s)"
    (complain if verdict.verdict == FAILED else say)(f"{line} {verdict.note}".rstrip())
    for figure in verdict.figures:
        say(f"  {figure.name}: {shown(figure)}, expected of an H200: {figure.expected}")
