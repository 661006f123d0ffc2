"""Recipe of the embedded drafters: the trainer of every drafter (decoders.training) with settings
for one CPU core and a quarter of an hour.

An image's states cost two of its uses, so it is used four times. The loss is the choice of short
trainings, measured by the codes a step of a chain of 8 (temperature 1, guidance 3) on codes that
the target sampled. From a drafter that had been trained to depth 1 (2.13), a minute of the guided
loss unrolled to depth 4 gave 2.18, with the overlap itself in the loss and less weight on deeper
drafts 2.23, without noise on the states 2.26. From nothing, in two minutes: unrolling from the
start 1.92, after a third of the training 1.94; and of that, batches of 12, 6 and 3 images gave
1.94, 2.14 and 2.25. Twice the rate changed nothing.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from decoders.api import ImageModel, Sampling
from decoders.models.eagle_net import EagleNet
from decoders.propose.drafters.eagle3 import Eagle3Learner
from decoders.propose.drafters.eagle_learner import EagleLearner
from decoders.tiny.scenes.source import Scenes
from decoders.training.losses import LossConfig
from decoders.training.shards import DataConfig, Ring, StateMaker
from decoders.training.states import Learner, transformer_of
from decoders.training.trainer import TrainConfig, Trainer

OFFSET = 5_000_000  # train-split indices that tokenizer and target never saw
CFG = 3.0  # between fidelity to the caption and variety; also what the drafter is trained under
LOSS = LossConfig(
    guided=True, cfg=CFG, overlap=1.0, noise=0.0, rollout=4, unroll_from=0.35, roots=32, decay=0.7
)
DATA = DataConfig(shard=48, ring=16, reuse=4.0, chunk=6)
SHORT = DataConfig(shard=24, ring=16, reuse=8.0, chunk=6)  # a few hundred steps are mostly states
TRAIN = TrainConfig(  # those of conf/train/model/tiny.yaml
    steps=10000,
    batch=3,
    lr=2e-3,
    muon_lr=0.02,
    decay=0.01,
    clip_value=0.0,
    clip_norm=1.0,
    warmup=50,
    schedule="cosine",
    floor=0.02,
    save_every=100,
    evaluate_every=2500,
    held_out=96,
    depth=8,
)


# EAGLE-3: seven of its own steps from the start, no term on features. All of the target's codes
# count, as the sampler cuts none off. Few steps from a trained drafter ask for a low rate: EAGLE
# trained on at half its rate lost 0.03 of its overlap in 860 steps.
LOSS_3 = replace(LOSS, regression=0.0, soft=0.1, unroll_from=0.0, rollout=7, roots=16, decay=0.8)
TRAIN_3 = replace(TRAIN, lr=4e-5, muon_lr=4e-4, held_out=48, evaluate_every=400)


def train(model: ImageModel, out_dir: Path, **settings: Any) -> tuple[EagleNet, dict[str, Any]]:
    """Trains EAGLE; returns it with its model-card figures: `overlap_d` and `agree_d` are the
    held-out acceptance at depth d, sampling and greedy. settings: of `TrainConfig`."""
    learner = EagleLearner(model, None)
    figures = _trained(learner, model, out_dir, LOSS, replace(TRAIN, **settings), DATA)
    return learner.net.eval(), figures


def train_eagle3(
    model: ImageModel, out_dir: Path, **settings: Any
) -> tuple[nn.Module, dict[str, Any]]:
    """As `train`, EAGLE-3, which begins as the model's EAGLE."""
    learner = Eagle3Learner(model, "eagle")
    figures = _trained(learner, model, out_dir, LOSS_3, replace(TRAIN_3, **settings), SHORT)
    return learner.net.eval(), figures


def _trained(
    learner: Learner,
    model: ImageModel,
    out_dir: Path,
    loss: LossConfig,
    config: TrainConfig,
    data: DataConfig,
) -> dict[str, Any]:
    """Trains a learner's net; returns the figures of the model card."""
    target = transformer_of(model)
    maker = StateMaker(target, Scenes(model, OFFSET), True, data, config.seed, reads=learner.reads)
    ring = Ring(maker, config.batch, config.seed)
    begun = time.process_time()
    done = Trainer(learner, target, ring, Sampling(cfg=CFG), loss, config, out_dir).run()
    return {
        "cpu_seconds": time.process_time() - begun,  # the last run's, its evaluation counted in
        "images": ring.seen(done.steps),
        "steps": done.steps,
        "seconds": done.seconds,
        "valid_overlap": done.acceptance.overlap[0],
        **{f"valid_{name}": value for name, value in done.acceptance.figures().items()},
    }
