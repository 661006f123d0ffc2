"""A drafter trained on a checkpoint of an official layout learns, is stored and read back whole,
and decodes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from decoders.api import ImageModel, Sampling
from decoders.loops.autoregressive import Autoregressive
from decoders.models import llamagen
from decoders.propose.drafters.eagle import Eagle, EagleLearner, net_of
from decoders.propose.trees.dynamic import Dynamic
from decoders.training.drafter import (
    AcceptanceRates,
    LossConfig,
    TrainingResult,
    measure_rates,
    train_drafter,
)
from decoders.training.states import DataConfig, ImageList, Images, StateData, transformer_of
from decoders.training.trainer import TrainConfig
from tests.decoders.compositions import drafting, images
from tests.decoders.models import chameleon_checkpoint as C
from tests.decoders.models import released as R
from tests.decoders.models.random_checkpoints.t5 import save_t5

GREEDY = Sampling(temperature=0, cfg=2.0)
LOSS = LossConfig(guided=True, cfg=2.0, soft=1.0, noise=0.0, rollout=3, roots=6)
CONFIG = TrainConfig(
    steps=40, batch=4, lr=1e-2, decay=0.0, precision="float32", evaluate_every=0, held_out=2,
    save_minutes=0, log_every=1, depth=3, warmup=2,
)  # fmt: skip
CAPTIONS = [
    "a red cube", "a blue ring", "a cat", "a red ring on a cube", "a blue cube", "a cat on a cube",
    "a red cat", "a ring on a cat", "a cube", "a blue cat",
]  # fmt: skip
SCENES = [
    "a red fox", "snow", "a fox in snow", "red snow", "the fox", "a fox in a red image",
    "an image of snow", "fox", "the red fox in snow", "image",
]  # fmt: skip


def hub(folder: Path) -> ImageModel:
    text = str(save_t5(folder / "t5", R.TEXT))
    return llamagen.load(dtype="float32", checkpoint=str(R.write_hub(folder / "m")), text=text)


def single_file(folder: Path) -> ImageModel:
    content = {"model": R.original_llamagen(classes=10)}
    checkpoint = str(R.write_original(folder / "c2i.pt", content))
    return llamagen.load(dtype="float32", checkpoint=checkpoint, grid=R.GRID)


# One of each architecture: how its files are laid out, the tests of the checkpoints read.
LAYOUTS: dict[str, tuple[Callable[[Path], ImageModel], list[str]]] = {
    "LlamaGen hub": (hub, CAPTIONS),
    "LlamaGen classes": (single_file, [str(number) for number in range(10)]),
    "Lumina": (lambda d: C.lumina(C.write_checkpoint(d, C.hf_model())), SCENES),
}


@dataclass(frozen=True)
class Done:
    """A training and what the drafter was worth before and after, on the images it learnt from."""

    model: ImageModel
    learner: EagleLearner
    result: TrainingResult
    before: AcceptanceRates
    after: AcceptanceRates
    prompts: list[str]
    folder: Path


def data_of(model: ImageModel, prompts: list[str]) -> StateData:
    """Eight images to learn from and two held out: what the target draws for the prompts."""
    config = DataConfig(shard=8, reuse=2, chunk=4, drop=0.5)
    decoder = Autoregressive(model, GREEDY)

    def draw(numbers: list[int]) -> Images:
        words = [prompts[n] for n in numbers]
        codes = images(decoder, words).codes.clone()  # no inference tensor
        return Images(model.text.encode(words), codes)

    source = ImageList(len(prompts), 0.2, 0, draw)
    return StateData(transformer_of(model), source, True, config, CONFIG.batch)


@pytest.fixture(scope="module", params=LAYOUTS)
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("training")
    load, prompts = LAYOUTS[request.param]
    model = load(folder)
    target = transformer_of(model)
    torch.manual_seed(0)
    learner = EagleLearner(model)
    data = data_of(model, prompts)
    learnt = data.states("train", range(8))
    before = measure_rates(learner, target, [learnt], GREEDY, CONFIG.depth)
    result = train_drafter(learner, data, GREEDY, LOSS, CONFIG, folder / "run")
    after = measure_rates(learner, target, [learnt], GREEDY, CONFIG.depth)
    return Done(model, learner, result, before, after, prompts, folder)


def test_the_loss_falls_and_the_acceptance_of_every_depth_rises(done):
    losses = [row["loss"] for row in done.result.trainer.history if "loss" in row]
    assert len(losses) == CONFIG.steps
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
    for was, now in (
        (done.before.overlap, done.after.overlap),
        (done.before.agree, done.after.agree),
    ):
        assert len(was) == len(now) == CONFIG.depth
        assert all(b > a + 0.3 for a, b in zip(was, now, strict=True))
    assert done.after.chain_length() > 1.5 * done.before.chain_length()


def test_greedy_codes_are_ars_in_fewer_target_calls(done):
    """With the stored drafter, whose names are those of the released ones, in bfloat16."""
    model = done.model
    done.learner.save(done.folder / "saved")
    ar = images(Autoregressive(model, GREEDY), done.prompts)
    eagle = Eagle(model, str(done.folder / "saved"))
    tree = Dynamic(depth=3, top_k=3, nodes=8)
    fast = images(drafting(model, eagle, tree, sampling=GREEDY), done.prompts)
    assert torch.equal(fast.codes, ar.codes)
    assert fast.trace.target_calls.sum() < 0.75 * ar.trace.target_calls.sum()


def test_a_half_precision_target_is_trained_on(tmp_path):
    model = C.anole(C.write_checkpoint(tmp_path, C.hf_model()), dtype="bfloat16")
    learner, data = EagleLearner(model), data_of(model, SCENES)
    config = replace(CONFIG, steps=8, warmup=1, precision="bf16")
    done = train_drafter(learner, data, GREEDY, LOSS, config, tmp_path / "run")
    losses = [row["loss"] for row in done.trainer.history if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]
    assert {p.dtype for p in learner.net.parameters()} == {torch.float32}
    learner.save(tmp_path / "drafter")
    assert net_of(model, str(tmp_path / "drafter")).fc.weight.dtype == torch.bfloat16
