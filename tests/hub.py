"""A hub of folders in the place of the real one, and file lists of repositories that the project
names, as the hub showed them: sizes in megabytes."""

import fnmatch
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from decoders.models.loading.weights import main_of


def numbered(stem: str, ending: str, *sizes: float) -> dict[str, float]:
    """Shards, and the index that lists them."""
    names = [f"{stem}-{n:05d}-of-{len(sizes):05d}.{ending}" for n in range(1, len(sizes) + 1)]
    return dict(zip(names, sizes, strict=True)) | {f"{stem}.{ending}.index.json": 0.1}


CONFIG = {".gitattributes": 0.0, "README.md": 0.0, "config.json": 0.0}
TOKENIZER = {"special_tokens_map.json": 0.0, "tokenizer.json": 5.6, "tokenizer_config.json": 2.9}
SHARDS = numbered("model", "safetensors", 9980, 4050)
FILES: dict[str, dict[str, float]] = {  # a repository of each shape
    "jadohu/LlamaGen-T2I": {**CONFIG, "model.safetensors": 3100},
    "jadohu/llamagen_drafter": {**CONFIG, "pytorch_model.bin": 180},
    "peizesun/llamagen_t2i": {
        "README.md": 0.0, "t2i_XL_stage1_256.pt": 3100, "t2i_XL_stage2_512.pt": 3100,
        "vq_ds16_t2i.pt": 288,
    },
    "FoundationVision/LlamaGen": {
        "README.md": 0.0, "c2i_3B_384.pt": 12400, "c2i_B_256.pt": 444, "vq_ds16_c2i.pt": 288,
        "vq_ds16_c2i_training.pt": 600, "vq_ds8_c2i.pt": 281,
    },
    "google/flan-t5-xl": {
        **CONFIG, **TOKENIZER, "generation_config.json": 0.0, "spiece.model": 0.8,
        "flax_model-00001-of-00002.msgpack": 9970, "flax_model-00002-of-00002.msgpack": 1430,
        "flax_model.msgpack.index.json": 0.1,
        **numbered("model", "safetensors", 9450, 1950),
        **numbered("pytorch_model", "bin", 9450, 1950),
        **numbered("tf_model", "h5", 9450, 1950),
    },
    "leloy/Anole-7b-v0.1-vqvae-hf": {
        ".gitattributes": 0.0, "config.json": 0.0, "model.safetensors": 275,
    },
    "seliny2/Chameleon_7B_mGPT": {
        **CONFIG, **TOKENIZER, **SHARDS, "original_tokenizers/text_tokenizer.json": 5.6,
        "original_tokenizers/vqgan.ckpt": 281, "original_tokenizers/vqgan.yaml": 0.0,
    },
    "Alpha-VLLM/Lumina-mGPT-7B-768": {**CONFIG, **TOKENIZER, **SHARDS},
    "Alpha-VLLM/Lumina-mGPT-7B-512": {
        **CONFIG, ".ipynb_checkpoints/config-checkpoint.json": 1.7, **SHARDS,
    },
    "deepseek-ai/Janus-Pro-7B": {
        **CONFIG, **TOKENIZER, "janus_pro_teaser1.png": 0.1, "preprocessor_config.json": 0.0,
        **numbered("pytorch_model", "bin", 9990, 4850),
    },
    "wnma3mz/Janus-Pro-7B-LM": {  # an index of files that are not there
        **CONFIG, **TOKENIZER, "model.safetensors": 13800, "pytorch_model.bin.index.json": 0.0,
    },
    "nvidia/Cosmos-1.0-Tokenizer-DV8x16x16": {
        **CONFIG, "autoencoder.jit": 224, "decoder.jit": 132, "encoder.jit": 92.3,
    },
}  # fmt: skip


@dataclass
class Hub:
    """folders: by repository its newest revision and its files, in a folder or named alone (then
    what is downloaded is empty). sent: the files that were downloaded, in order."""

    folders: dict[str, tuple[str, Path | dict[str, float]]]
    refused: dict[str, Exception] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        """In the place of the hub's client; cache: where that keeps what it has downloaded."""

        def model_info(_: object, *given: Any, **named: Any) -> SimpleNamespace:
            return self.model_info(*given, **named)

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot)

    def model_info(
        self, source: str, revision: str | None = None, files_metadata: bool = False
    ) -> SimpleNamespace:
        if source in self.refused:
            raise self.refused[source]
        newest, files = self.folders[source]
        sizes = {name: int(1e6 * size) for name, size in self._sizes(files).items()}
        siblings = [
            SimpleNamespace(rfilename=name, size=size if files_metadata else None)
            for name, size in sizes.items()
        ]
        return SimpleNamespace(sha=revision or newest, siblings=siblings)

    def snapshot(
        self, source: str, revision: str | None = None, allow_patterns: list[str] | None = None
    ) -> str:
        newest, files = self.folders[source]
        main = main_of(source)
        cached = main.parents[1] / "snapshots" / (revision or newest)
        if source in self.refused and not cached.exists():
            raise self.refused[source]
        cached.mkdir(parents=True, exist_ok=True)
        if revision is None:
            main.parent.mkdir(parents=True, exist_ok=True)
            main.write_text(newest)
        for name in self._sizes(files):
            wanted = any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns or ())
            if wanted and not (cached / name).exists():
                self.sent.append(name)
                (cached / name).parent.mkdir(exist_ok=True)
                if isinstance(files, Path):
                    shutil.copy(files / name, cached / name)
                else:
                    (cached / name).touch()
        return str(cached)

    @staticmethod
    def _sizes(files: Path | dict[str, float]) -> dict[str, float]:
        if isinstance(files, dict):
            return files
        paths = [path for path in files.rglob("*") if path.is_file()]
        return {str(path.relative_to(files)): path.stat().st_size / 1e6 for path in paths}


def hub_of(*sources: str) -> Hub:
    """Of published repositories, by their names: empty files."""
    return Hub({name: (f"{at:040x}", FILES[name]) for at, name in enumerate(sources)})
