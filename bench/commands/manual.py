"""`python -m bench COMMAND --help`: what a command does, its own settings, an example.

Why apart from the commands: help must answer in under a second, and a command's own module imports
torch or Hydra. That every setting named here exists, and none is left out, is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Manual:
    """does: sentences; settings: (as it is written, what it means); example: a command line without
    its beginning. study: all settings of a study can be given too."""

    does: str
    settings: Sequence[tuple[str, str]]
    example: str
    words: str = "[setting=value ...]"
    study: bool = True


SOME = (
    ("study=NAME", "which study (`list study`; default: main, unless said above)"),
    ("decoders=[a,b]", "decoders of the study, or any of conf/decoder"),
    ("run_dir=DIR", "the run's folder (default: results/runs/<study> in the current folder)"),
)
MORE = "All settings of a study can be given: `python -m bench list settings`."

MANUALS = {
    "run": Manual(
        "Decodes all images of a study, judges every decoder, and writes records, summary.csv and\n"
        "the report. The same command resumes what was interrupted.",
        (
            *SOME,
            ("latency.prompts=N", "timed images per decoder; 0 leaves the timing out"),
            ("quality.images=N", "images per decoder for the quality figures; 0 leaves them out"),
            ("retry_failed=true", "decode failed rows again"),
            ("launch=NAME", "workers decode the quality images: local, slurm, ray (`list launch`)"),
            ("launch.workers=N", "how many; `list launch=slurm` shows all settings of a launch"),
            ("shard=I/N", "be one of N workers, by hand: every N-th image from the I-th on"),
        ),
        "run study=main decoders=[ar,lantern] latency.prompts=12 quality.images=64",
    ),
    "sweep": Manual(
        "Runs a study with one decoder for each value, or combination of values, of the settings\n"
        "that are given several. A decoder without such a setting runs once. Resumes as `run`\n"
        "does; `report` makes the tables again from the same words with this run_dir.",
        (
            ("PART.SETTING=A,B", "values of a setting of decoders: acceptance.delta=0.05,0.1"),
            ("PART=A,B", "options of a part: tree=chain,static"),
            *SOME[:2],
            ("run_dir=DIR", "the run's folder (default: results/runs/<study>_sweep)"),
        ),
        "sweep study=main decoders=[ar,lantern] acceptance.delta=0.05,0.1,0.2",
    ),
    "report": Manual(
        "Makes tables, plots and page again from the records that are there, also while a run\n"
        "goes on. Takes the words of that run.",
        SOME,
        "report study=smoke",
    ),
    "check": Manual(
        "Prints the exactness gate's verdict on every decoder of a study: exact, relaxed or\n"
        "broken. Nothing is timed and nothing is written.",
        SOME[:2],
        "check study=smoke",
    ),
    "steps": Manual(
        "Times an AR step, verifications of the study's trees and a drafter call of its model.\n"
        "Compares them with their matrix products and their floors here. Writes steps.csv to\n"
        "run_dir.",
        (("model=NAME", "the model (`list model`)"), ("backend=NAME", "where it runs"), SOME[2]),
        "steps backend=cpu_torch",
    ),
    "gpu-check": Manual(
        "Checks an NVIDIA card in stages of at most eight minutes: costs and replayed acceptance\n"
        "at official sizes, kernels, graphs, study=speed, a profile. A stage that fails stops no\n"
        "other. Writes one folder: verdicts.json, README.md, every stage's log and tables. The\n"
        "same command takes it up again: stages that passed are not run again.",
        (
            ("out=DIR", "the folder (default: results/gpu_check)"),
            ("stages=A,B", "some of the stages (docs/gpu.md)"),
        ),
        "gpu-check out=results/gpu_check",
        words="[out=DIR] [stages=A,B]",
        study=False,
    ),
    "scaling": Manual(
        "Runs study=scaling (or another): decoders timed at several batch sizes. It resumes and\n"
        "reports as `run` does; the report has a table and a plot by batch size.",
        (
            *SOME,
            ("latency.batch=[1,4]", "batch sizes, 1 among them"),
            ("latency.prompts=N", "timed images of each size, cut to full batches, one at least"),
            ("latency.repeats=N", "how often all of them are timed"),
        ),
        "scaling study=main decoders=[ar,eagle2] latency.batch=[1,4,16]",
    ),
    "profile": Manual(
        "Records steps of every decoder of a study with torch.profiler. Writes tables and Chrome\n"
        "traces to run_dir/profile.",
        (
            *SOME,
            ("profile.steps=N", "recorded steps per image"),
            ("profile.top=N", "operators shown per decoder"),
            ("profile.batch=N", "images decoded at once"),
        ),
        "profile decoders=[ar,lantern_pp] profile.steps=16",
    ),
    "peers": Manual(
        "Runs study=peers (or another): ours and the ways to call transformers' generate\n"
        "(decoder=hf_generate*) on equal weights, which each shows before its first image. It\n"
        "resumes and reports as `run` does.",
        (
            *SOME,
            ("latency.prompts=N", "timed images per decoder"),
            ("loop.attention=NAME", "transformers' attention: sdpa or eager"),
            ("loop.layers=N", "layers of the target that draft for assisted generation"),
            ("loop.drafts=N", "its codes per round"),
            ("loop.tolerance=X", "largest difference of logits that counts as equal"),
        ),
        "peers latency.repeats=2 decoders=[ar,hf_generate,hf_generate_static]",
    ),
    "predict": Manual(
        "Predicts the speed-ups of a finished run from step costs and acceptance, and compares\n"
        "them with the measured ones. Takes the words of that run. Writes predicted.csv to\n"
        "run_dir/predict.\n"
        "With hardware=NAME nothing is timed: what the run's acceptance would give on a machine\n"
        "that is not here (projected), and papers' AR steps in floors. Of the run it takes study=\n"
        "or run_dir= alone. Writes projected.csv and projected.md there.",
        (
            *SOME,
            ("predict.costs=NAME", "auto, steps (single steps) or images (whole images)"),
            ("predict.images=N", "timed images per decoder for predict.costs=images"),
            ("predict.shorter=false", "leave out what shorter chains would do"),
            ("hardware=NAME", "a machine (`list hardware`), or your own through hydra.searchpath"),
            ("model=NAME", "with hardware=: at whose size (default: the run's own model)"),
            ("published=FILE", "with hardware=: another table of published numbers"),
        ),
        "predict study=smoke",
    ),
    "tune": Manual(
        "Searches trees and rules for a model on this machine (default study=tune), and measures\n"
        "the best against AR. Writes the winner as a decoder's YAML. `list settings` explains all\n"
        "settings.",
        (
            ("model=NAME", "the model (`list model`)"),
            ("tune.exactness=NAME", "exact, relaxed or any"),
            ("tune.tv=X", "most output TV allowed, 0 to 1"),
            ("tune.base=NAME", "the decoder whose loop and drafter are used"),
            ("tune.trees=[...]", "trees, each {tree: NAME, setting: value or list}"),
            ("tune.rules=[...]", "rules, each {acceptance: NAME, setting: value or list}"),
            ("tune.k=[...]", "values of k in the rules; likewise tune.delta, tune.lam"),
            ("tune.prompts=N", "images that acceptance is recorded on"),
            ("tune.pairs=N", "pairs (p, q) of them for the output TV"),
            ("tune.probes=N", "images that a tree's step is timed on"),
            ("tune.measure=N", "candidates measured against AR"),
            ("tune.out=FILE.yaml", "where the winner goes"),
            SOME[2],
        ),
        "tune tune.exactness=exact 'tune.trees=[{tree: chain, depth: [1, 2, 3, 4]}]'",
    ),
    "compare": Manual(
        "Compares a finished run with the papers' numbers: reproduced, not reproduced, or not\n"
        "comparable and why. Writes compare.md, .csv, .svg and .png.",
        (
            ("study=NAME", "the run in results/runs/NAME (default: main)"),
            ("run_dir=DIR", "or the run in this folder"),
            ("summary=FILE", "or this summary.csv alone"),
            ("published=FILE", "another table of published numbers"),
            ("tolerance=X", "how far apart two figures may be, as a fraction (default: 0.1)"),
            ("out=DIR", "where the files go (default: compare/ in the run's folder)"),
        ),
        "compare run_dir=results/runs/main tolerance=0.05",
        study=False,
    ),
    "methods": Manual(
        "Prints a Markdown table of every method: what it is exact to, what its released code\n"
        "does, its published speed-ups, and what it reaches in the runs that are named.",
        (("out=FILE", "also writes the table there"),),
        "methods results/runs/exact results/runs/relaxed",
        words="[RUN ...] [setting=value ...]",
        study=False,
    ),
    "diff": Manual(
        "Compares two runs decoder by decoder, or two decoders of one run, on the images that\n"
        "both made. Every figure is better, worse or not told apart, with the smallest\n"
        "difference that would have been found. Exit status 1 where B is slower or worse than A.",
        (
            ("decoders=A,B", "two decoders of one run folder"),
            ("level=X", "share of false discoveries to allow (default: 0.05)"),
            ("out=FILE", "the same as JSON"),
        ),
        "diff results/runs/main results/runs/main_again",
        words="RUN_A [RUN_B] [setting=value ...]",
        study=False,
    ),
    "fetch": Manual(
        "Downloads the models of a study from the hub, and notes their revisions. Workers then\n"
        "read the hub's cache alone. Fetching again keeps the revisions.",
        (*SOME, ("pins=FILE", "the revisions (default: revisions.json next to run_dir)")),
        "fetch study=lantern_table",
    ),
    "merge": Manual(
        "Puts run folders of one study together, whose shards were run by hand. Refuses folders\n"
        "of different configurations, commits or kinds of machines, and images that two folders\n"
        "have with different codes. Exit status 1 while rows are missing.",
        (("out=DIR", "where they go: a new folder, or one of theirs"),),
        "merge results/runs/half_0 results/runs/half_1 out=results/runs/whole",
        words="DIR DIR [DIR ...] out=DIR",
        study=False,
    ),
    "pack": Manual(
        "Writes the codes of a finished run as Parquet (uint16) and its pictures as tar files in\n"
        "WebDataset's layout. Both are lossless. Takes the words of the run.",
        (
            *SOME,
            ("pack.pictures=NAME", "kept (the run's own), decoded (again, from the codes), none"),
            ("pack.gigabytes=X", "size of a tar file (default: 1)"),
            ("pack.out=DIR", "where they go (default: packed/ in the run's folder)"),
        ),
        "pack study=smoke pack.pictures=decoded",
    ),
    "publish": Manual(
        "Copies what is shared of a finished run into a folder: records, tables, verdicts, and\n"
        "run.json with their hashes. `diff` and `leaderboard` read such folders.",
        (("lists=true", "keep the codes and masses of every image (default: false)"),),
        "publish results/runs/main results/tables/main",
        words="RUN DIR [setting=value ...]",
        study=False,
    ),
    "leaderboard": Manual(
        "Checks every run.json below a folder and shows all decoders on one page: speed-up over\n"
        "each machine's own AR, quality by protocol, and apart what has no verdict or is broken\n"
        "it. A record with a file that is not as it was recorded is refused.",
        (("out=FILE", "a .html, .csv or .md (default: leaderboard.html in the folder)"),),
        "leaderboard results/tables out=board.html",
        words="DIR [out=FILE]",
        study=False,
    ),
    "checkpoints": Manual(
        "Lists what studies need: weights, tokenizers, text encoders, networks of the metrics,\n"
        "captions. Says what is found, and where the rest is looked for. Fetches nothing.",
        (
            ("study=NAME", "only this study (default: all), with all of its settings"),
            ("out=FILE", "the list as .csv or .md"),
        ),
        "checkpoints study=lantern_table",
    ),
    "plan": Manual(
        "Says what a study needs before it starts: downloads, memory, images, hours. With launch=\n"
        "also shards and hours of workers. Loads no model and fetches nothing.",
        (*SOME, ("launch=NAME", "and its settings, as `run` takes them")),
        "plan study=lantern_table",
    ),
    "evaluate": Manual(
        "Computes the papers' quality figures of a folder of images with captions. Every folder\n"
        "of pictures of a run holds its captions as captions.json.",
        (
            ("images=DIR", "the images (.png .jpg .jpeg .webp .bmp), numbers in numeric order"),
            ("captions=FILE", ".txt (one per line), .csv .tsv .json .jsonl (image, caption)"),
            ("reference=DIR", "real images, for FID, KID, precision and recall"),
            ("metrics=[...]", "fid, fid_tf, kid, precision_recall, precision_recall_whole, clip,"),
            ("", "clip_g, hps, scenes (the embedded CLIP)"),
            ("weights.NAME=FILE", "weights of inception, vgg, clip, clip_g, hps"),
            ("weights.folder=DIR", "where weights are looked for by their public names"),
            ("", "(default: ~/.cache/lantern-bench/metrics)"),
            ("arch.NAME=...", "another open_clip architecture of clip, clip_g or hps"),
            ("limit=N", "only the first N images"),
            ("size=N", "side of the centre crop (default: 256)"),
            ("batch=N", "images at once (default: 64)"),
            ("seed=N", "of the bootstrap intervals (default: 0)"),
            ("device=NAME", "auto, cpu or cuda"),
            ("cache_dir=DIR", "features of the reference, kept between calls"),
            ("out=FILE.csv", "the figures with all that they were made with"),
        ),
        "evaluate images=DIR captions=DIR/captions.json reference=REAL metrics=[scenes]",
        study=False,
    ),
    "features": Manual(
        "Writes the text features of all prompts to a file. A study reads it with\n"
        "prompts=features prompts.path=FILE.",
        (
            ("out=FILE", "the file, a .safetensors"),
            ("prompts=NAME", "the prompts (`list prompts`), with their settings"),
            ("model=NAME", "the model whose text encoder is used"),
            ("text.checkpoint=DIR", "or a T5 encoder of its own: folder or hub id"),
            ("text.dtype=NAME", "its dtype (default: backend.dtype)"),
            ("text.length=N", "its tokens per prompt (default: 120)"),
        ),
        "features prompts=file prompts.path=mine.txt model=tiny out=mine.safetensors",
    ),
    "train": Manual(
        "Trains a drafter for a model, and resumes an interrupted training. Writes checkpoint,\n"
        "curves and acceptance to run_dir. `list settings` shows all settings of a training.",
        (
            ("drafter=NAME", "what is trained: eagle or medusa, or your own"),
            ("model=NAME", "the model that it drafts for"),
            ("data=NAME", "where the target's states come from (`list data`)"),
            ("loss=NAME", "the loss (`list loss`)"),
            ("train.steps=N", "steps of the optimiser"),
            ("train.budget_seconds=X", "stop after so many seconds"),
            ("start=NAME", "a drafter to go on from"),
            ("run_dir=DIR", "default: results/train/<drafter>_<model> in the current folder"),
        ),
        "train drafter=medusa model=tiny loss=unrolled train.budget_seconds=600",
        study=False,
    ),
    "tiny": Manual(
        "Trains the embedded models from nothing, stage by stage: vq, target, drafter, clip\n"
        "(default: all of them). A stage rests on the ones before it. The large model has the\n"
        "stages target and drafter, which start as those of the small one, grown.",
        (
            ("weights=DIR", "where weights go; the shipped ones need overwrite=true"),
            ("overwrite=true", "write over the shipped weights"),
            ("work=DIR", "checkpoints and curves (default: work)"),
            ("minutes=X", "of each stage; or steps=N"),
            ("warm=true", "go on from the weights in the folder"),
            ("resume=false", "begin a stage anew that was interrupted"),
            ("rate=X", "factor of the target's learning rates"),
            ("compile=true", "compile the target's layers: half a minute, then half the time"),
            ("seed=N", "default: 0"),
            ("device=NAME", "default: cpu"),
            ("size=NAME", "small (default) or large"),
            ("small=DIR", "what large models are grown from (default: the shipped small ones)"),
        ),
        "tiny vq target weights=work/tiny minutes=5",
        words="[STAGE ...] [setting=value ...]",
        study=False,
    ),
    "list": Manual(
        "Shows what can be chosen: groups and their options, all settings, or those of one option.",
        (
            ("GROUP", "the options of a group: decoder, model, study, tree, ..."),
            ("GROUP=OPTION", "the settings of one option"),
            ("settings", "all settings of a study, a training and a search"),
        ),
        "list acceptance=lantern",
        words="[GROUP | GROUP=OPTION | settings ...]",
        study=False,
    ),
}  # fmt: skip


def manual(command: str) -> str:
    """The help of a command."""
    found = MANUALS[command]
    width = max(len(name) for name, _ in found.settings)
    lines = [f"usage: python -m bench {command} {found.words}", "", found.does, "", "settings:"]
    lines += [f"  {name:<{width}}  {what}" for name, what in found.settings]
    lines += ["", MORE] if found.study else []
    return "\n".join([*lines, "", "example:", f"  python -m bench {found.example}"])
