"""The public checkpoints (METHODS 6): hub ids, files, shapes; and what of them is on this disk.

Sizes are not measured: they are parameters (from the shapes) times the bytes of a dtype, and are
shown as estimated. Where a repository does not say in which dtype it stores its weights, float32 is
assumed, so that the estimate is an upper bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.config.schema import LoaderConfig
from bench.data.errors import BenchError
from bench.data.files import WEIGHTS
from bench.records.study import read_json
from decoders import documents
from decoders.kinds import Amount, KindError, fitted
from decoders.models.sizes import (
    ANOLE,
    BYTES,
    CHAMELEON_VQ,
    EMU3,
    FLAN_T5_XL,
    LLAMAGEN_256,
    LLAMAGEN_512,
    LLAMAGEN_VQ,
    LUMINA,
    RELEASED,
    Shape,
)

EMBEDDED = Path(__file__).resolve().parents[2] / "decoders" / "tiny" / "weights"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SINGLES = ("model.safetensors", "pytorch_model.bin")
SIZES = {  # of a Shape, as a config.json names them
    "width": "hidden_size", "layers": "num_hidden_layers", "ffn": "intermediate_size",
    "text_width": "caption_dim", "length": "block_size",
}  # fmt: skip
LISTS = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class Published:
    """A repository. params: of its files together; dtype: assumed; by_hand: on no hub."""

    files: tuple[str, ...]
    params: int
    dtype: str = "float32"
    by_hand: bool = False

    @property
    def bytes(self) -> int:
        return self.params * BYTES[self.dtype]


def shards(count: int) -> tuple[str, ...]:
    """File names of a sharded safetensors checkpoint."""
    names = (f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1))
    return (LISTS[0], *names)


# As the hub lists deepseek-ai's two files: 9.99 + 4.85 GB of bfloat16. How many files the other
# repository has is not known.
_BINS = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
_SINGLE = ("config.json", "model.safetensors")
_DRAFTER = ("config.json", "pytorch_model.bin")
VQGAN = "vqgan.ckpt"
REPOSITORIES = {
    "jadohu/LlamaGen-T2I": Published(_SINGLE, LLAMAGEN_256.stored),
    "jadohu/LlamaGen-T2I-2": Published(_SINGLE, LLAMAGEN_512.stored),
    "peizesun/llamagen_t2i": Published(("vq_ds16_t2i.pt",), LLAMAGEN_VQ.params),
    "FoundationVision/LlamaGen": Published(("vq_ds16_c2i.pt",), LLAMAGEN_VQ.params),
    "google/flan-t5-xl": Published(shards(2), FLAN_T5_XL.stored),
    "leloy/Anole-7b-v0.1-hf": Published(shards(3), ANOLE.stored + CHAMELEON_VQ.params, "bfloat16"),
    "Alpha-VLLM/Lumina-mGPT-7B-768": Published(shards(2), LUMINA.stored, "bfloat16"),
    # Both carry parts that see pictures, so their shape does not give the size.
    "deepseek-community/Janus-Pro-7B": Published((LISTS[0],), 7_420_000_000, "bfloat16"),
    "deepseek-ai/Janus-Pro-7B": Published((LISTS[1], *_BINS), 7_420_000_000, "bfloat16"),
    # Parameters of transformers' Emu3ForConditionalGeneration: the 35.05 GB that the hub lists.
    "BAAI/Emu3-Gen-hf": Published(shards(8), 8_762_751_807),
    # Without the VQ model; 33.97 GB on the hub.
    "BAAI/Emu3-Gen": Published(shards(7), EMU3.stored),
    "jadohu/llamagen_drafter": Published(_DRAFTER, LLAMAGEN_256.drafter),
    "jadohu/llamagen2_drafter": Published(_DRAFTER, LLAMAGEN_512.drafter),
    "jadohu/anole_drafter": Published(_DRAFTER, ANOLE.drafter),
    "sihwanpark/LANTERN-Lumina-mGPT-7B-768": Published(_DRAFTER, LUMINA.drafter),
    # Not on a hub: Meta's Chameleon release, sent after a form is signed.
    VQGAN: Published((VQGAN,), CHAMELEON_VQ.params, by_hand=True),
}


# Networks of the quality metrics by their key in metrics.official; parameters counted in the
# networks of torchvision (VGG16), open_clip (CLIP and HPS) and torch-fidelity (Inception).
METRIC_WEIGHTS = {
    "inception": Published(("weights-inception-2015-12-05-6726825d.pth",), 23_850_960),
    "vgg": Published(("vgg16-397923af.pth",), 138_357_544),
    "clip": Published(("open_clip_model.safetensors",), 151_277_313),
    "clip_g": Published(("open_clip_model.safetensors",), 1_366_678_273),
    "hps": Published(("HPS_v2.1_compressed.pt",), 986_109_441, "float16"),
}


# Where the tokenizer lies that a configuration leaves open; else it is in the checkpoint.
TOKENIZERS = {
    "llamagen_xl_256": "peizesun/llamagen_t2i",
    "llamagen_xl_512": "peizesun/llamagen_t2i",
    "lumina_mgpt_7b_768": VQGAN,
}


def published(source: str) -> Published | None:
    """What is known of a source, by its hub id or the name of a file that is on no hub."""
    return REPOSITORIES.get(source) or REPOSITORIES.get(Path(source).name)


def from_hub(source: str) -> bool:
    """Whether a source is a repository of the hub, and no file or folder here."""
    return bool(HUB_ID.fullmatch(source)) and not Path(source).expanduser().exists()


def main_of(repository: str) -> Path:
    """The file of the hub's cache that says which commit its `main` is."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=repository, repo_type="model")
    return Path(HF_HUB_CACHE) / folder / "refs" / "main"


def present(source: str) -> tuple[list[Path], list[str]]:
    """(weight files of a source that are on this disk, names of those that are not).

    source: a local file or folder, or a hub id, looked up in the hub's cache without a connection.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return [path], []
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.suffix in WEIGHTS), []
    if not HUB_ID.fullmatch(source):
        return [], [source]
    known = published(source)
    listed = [name for name in known.files if name.endswith(WEIGHTS)] if known else []
    index = next((file for name in LISTS if (file := _cached(source, name))), None)
    if index is not None:
        shards = read_json(index, {"weight_map": dict[str, str]}).get("weight_map", {})
        listed = sorted({*shards.values()}) or listed
    found = {name: _cached(source, name) for name in listed or SINGLES}
    here = [file for file in found.values() if file is not None]
    if not here:  # the repository may hold its weights under the other usual name
        other = [file for name in SINGLES if (file := _cached(source, name)) is not None]
        return other, [] if other else listed or ["its weights"]
    return here, [name for name, file in found.items() if file is None]


def _cached(repository: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, file)
    return Path(found) if isinstance(found, str) else None


def embedded(model: LoaderConfig) -> bool:
    """Whether a model's weights are those that the project carries."""
    given = model.kwargs.get("checkpoint")
    return given is None and model.target.startswith("decoders.tiny.")


def source_of(model: LoaderConfig) -> str:
    """Where a model's checkpoint lies; "" where it has none."""
    return str(EMBEDDED if embedded(model) else model.kwargs.get("checkpoint") or "")


def shape_of(model: LoaderConfig) -> Shape | None:
    """The shape that the checkpoint's config.json (or the embedded models.json) describes, if it is
    on this disk, else the released model's; with the sizes that the model's settings ask for. None
    where it is not known."""
    found, _ = RELEASED.get(model.name, (None, None))
    place = Path(source_of(model)).expanduser()
    folder = place if place.is_dir() else place.parent
    card, config = folder / "models.json", folder / "config.json"
    if source_of(model) and place.exists():
        if card.is_file():
            found = _embedded(read_json(card, {}))
        elif config.is_file():
            found = found and _hub(read_json(config, documents.CONFIG), found)
    sizes: dict[str, Any] = {
        key: int(model.kwargs[key]) for key in ("width", "layers", "ffn") if key in model.kwargs
    }
    return None if found is None else replace(found, **sizes)


def _hub(found: dict[str, Any], usual: Shape) -> Shape:
    """By a config.json; `usual` gives what it leaves open."""
    sizes: dict[str, Any] = {name: int(found[key]) for name, key in SIZES.items() if key in found}
    rows = "tokens" if usual.tokens else "vocab"
    sizes |= {rows: int(found["vocab_size"])} if "vocab_size" in found else {}
    sizes |= {} if usual.text_width else {"text_width": 0}
    return replace(usual, **sizes)


def _embedded(found: dict[str, Any]) -> Shape:
    """By a models.json."""
    wanted = ("vocab", "width", "layers", "ffn", "prefix", "text_width", "grid")
    try:
        parts = fitted("models.json", found, dict[str, dict[str, Any]])
        target, vq = (
            fitted(f"models.json: {n}.config", parts.get(n, {}).get("config"), dict[str, Any])
            for n in ("target", "vq")
        )
        sizes = {
            k: fitted(f"models.json: target.config.{k}", target.get(k), Amount) for k in wanted
        }
        widths = fitted("models.json: vq.config.ch_mult", vq.get("ch_mult"), list[int])
    except KindError as error:
        raise BenchError(str(error)) from error
    grid = sizes.pop("grid")
    return Shape(**sizes, length=grid**2, side=grid * 2 ** (len(widths) - 1))
