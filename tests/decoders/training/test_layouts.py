"""A drafter trained on a checkpoint of an official layout learns, is stored and read back whole,
and decodes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decoders.api import ImageModel, Sampling
from decoders.loops.autoregressive import Autoregressive
from decoders.models import llamagen
from decoders.models.nets.transformer import transformer_of
from decoders.propose.drafters.eagle import Eagle, EagleLearner, net_of
from decoders.propose.trees.dynamic import Dynamic
from decoders.training.drafter import LossConfig, measure_rates, train_drafter
from decoders.training.states import DataConfig, ImageList, Images, target_states
from decoders.training.trainer import TrainConfig
from tests import checkpoints as K
from tests.decoders.compositions import drafting, images

GREEDY = Sampling(temperature=0, cfg=2.0)
LOSS = LossConfig(guided=True, cfg=2.0, soft=1.0, noise=0.0, rollout=3, roots=6)
CONFIG = TrainConfig(
    steps=40, batch=4, lr=1e-2, decay=0.0, precision="float32", evaluate_every=0, held_out=2,
    save_minutes=0, log_every=1, depth=3, warmup=2,
)  # fmt: skip
STATES = DataConfig(shard=8, reuse=2, chunk=4, drop=0.5)
SCENES = [
    "a red fox", "snow", "a fox in snow", "red snow", "the fox", "a fox in a red image",
    "an image of snow", "fox", "the red fox in snow", "image",
]  # fmt: skip


def single_file(folder: Path) -> ImageModel:
    path = K.write_original(folder / "c2i.pt", {"model": K.llamagen(classes=10)})
    return llamagen.load(dtype="float32", checkpoint=str(path), grid=K.LITTLE.grid)


def chameleon(folder: Path, kind: str = "lumina", dtype: str = "float32") -> ImageModel:
    K.write_hf(folder, K.hf_model("chameleon"), K.vocabulary("chameleon"))
    return K.load(kind, folder, dtype=dtype)


# One of each architecture: how its files are laid out, the tests of the checkpoints read.
LAYOUTS: dict[str, tuple[Callable[[Path], ImageModel], list[str]]] = {
    "LlamaGen classes": (single_file, [str(number) for number in range(10)]),
    "Lumina": (chameleon, SCENES),
}


def images_by(model: ImageModel, prompts: list[str]) -> ImageList:
    """Eight images to learn from and two held out: what the target draws for the prompts."""
    decoder = Autoregressive(model, GREEDY)

    def draw(numbers: list[int]) -> Images:
        words = [prompts[n] for n in numbers]
        codes = images(decoder, words).codes.clone()  # no inference tensor
        return Images(model.text.encode(words), codes)

    return ImageList(len(prompts), 0.2, 0, draw)


def train(learner: Any, model: ImageModel, source: ImageList, config: TrainConfig, folder: Path):
    given = transformer_of(model), source, GREEDY, LOSS, STATES, config, folder
    return train_drafter(learner, *given)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_drafter_learns_at_every_depth_and_is_stored_and_decodes(layout, tmp_path):
    """The stored drafter has the released names, and is in bfloat16."""
    load, prompts = LAYOUTS[layout]
    model = load(tmp_path)
    torch.manual_seed(0)
    learner, source = EagleLearner(model), images_by(model, prompts)
    learnt = target_states(transformer_of(model), source.images("train", range(8)))
    before = measure_rates(learner, transformer_of(model), [learnt], GREEDY, CONFIG.depth)
    result = train(learner, model, source, CONFIG, tmp_path / "run")
    losses = [row["loss"] for row in result.trainer.history if "loss" in row]
    assert len(losses) == CONFIG.steps and sum(losses[-3:]) < 0.5 * sum(losses[:3])
    after = measure_rates(learner, transformer_of(model), [learnt], GREEDY, CONFIG.depth)
    for was, now in ((before.overlap, after.overlap), (before.agree, after.agree)):
        assert len(was) == len(now) == CONFIG.depth
        assert all(b > a + 0.3 for a, b in zip(was, now, strict=True))
    learner.save(tmp_path / "saved")
    ar = images(Autoregressive(model, GREEDY), prompts)
    eagle, tree = Eagle(model, str(tmp_path / "saved")), Dynamic(depth=3, top_k=3, nodes=8)
    fast = images(drafting(model, eagle, tree, sampling=GREEDY), prompts)
    assert torch.equal(fast.codes, ar.codes)
    assert fast.trace.target_calls.sum() < 0.75 * ar.trace.target_calls.sum()


def test_a_half_precision_target_is_trained_on(tmp_path):
    model = chameleon(tmp_path, "anole", "bfloat16")
    learner, source = EagleLearner(model), images_by(model, SCENES)
    config = replace(CONFIG, steps=8, warmup=1, precision="bf16")
    done = train(learner, model, source, config, tmp_path / "run")
    losses = [row["loss"] for row in done.trainer.history if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]
    assert {p.dtype for p in learner.net.parameters()} == {torch.float32}
    learner.save(tmp_path / "drafter")
    assert net_of(model, str(tmp_path / "drafter")).fc.weight.dtype == torch.bfloat16
