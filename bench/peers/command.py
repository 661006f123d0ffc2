"""`python -m bench peers`: ours beside transformers' `generate` on identical weights.

Why: a speed-up says little if the baseline is slow. transformers is what most people would run, so
our AR is timed against it on the same machine, weights, prompts and clock, and our speculative loop
against its assisted generation with the very same drafter. Equality of the models is shown first.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from bench.config.own_settings import own_settings, with_study
from bench.console import progress, say
from bench.errors import ConfigError
from bench.os_errors import ready_folder

if TYPE_CHECKING:
    import torch

    from bench.config.schema import DecoderEntry, StudyConfig
    from bench.peers.lineup import PeersSettings
    from bench.peers.write import Comparison
    from bench.prompts import Prompt
    from decoders.api import ImageModel

STUDY = "peers"


def cmd_peers(words: Sequence[str]) -> int:
    """Proves equality, times all in turns, prints the tables and writes peers.csv and peers.md.

    Settings are those of a study (default study=peers) and peers.NAME=. 1 where one of *our*
    decoders failed: what transformers cannot do is a row of the table.
    """
    from bench.config.compose import compose_study
    from bench.peers.lineup import OURS, PeersSettings
    from bench.peers.write import save, terminal

    settings, rest = own_settings(PeersSettings, "peers", with_study(words, STUDY))
    config = compose_study(rest)
    ready_folder(Path(config.run_dir))
    logging.getLogger("transformers").setLevel(logging.ERROR)  # its hints are not ours to follow
    made = compare(config, settings)
    say(terminal(made))
    for path in save(made, Path(config.run_dir)):
        say(f"saved: {path}")
    return 1 if any(row.failed and row.engine == OURS for row in made.rows) else 0


def compare(config: StudyConfig, settings: PeersSettings) -> Comparison:
    """The comparison of a study's decoders. Raises ConfigError, PeerError (models that differ)."""
    from bench.config.plugins import call
    from bench.measure.device import prepare, provenance
    from bench.peers.check import prove
    from bench.peers.lineup import Lineup, modes_of
    from bench.peers.measure import Rounds
    from bench.peers.result import rows_of
    from bench.peers.write import Comparison
    from bench.prompts.readable import check_prompts
    from bench.run.session import frozen_heap, load_model

    baseline = baseline_of(config)
    device = prepare(config.backend)
    made = provenance(device)
    prompts: list[Prompt] = call(config.prompts, count=max(settings.prompts, settings.check))
    texts = [prompt.text for prompt in prompts]
    exact = _in_float32(config, device, prompts)
    base = baseline.sampling.resolve(exact.sampling)
    modes = modes_of(settings.modes, base)
    with progress(settings.check, "equality") as bar:
        proof = prove(exact, baseline.spec, base, texts[: settings.check], settings.tolerance)
        bar.update(settings.check)
    del exact
    model = load_model(config, device, prompts)
    check_prompts(model, prompts)
    lineup = Lineup(model, config.decoders, settings)
    rows = []
    total = len(modes) * (len(config.decoders) + len(settings.variants)) * settings.prompts
    with frozen_heap(), progress(total, "peers") as bar:
        warm = config.latency
        timed = texts[: settings.prompts]
        rounds = Rounds(
            model, timed, config.seed, warm.warmup_max, warm.warmup_tolerance, bar.update
        )
        for mode in modes:
            rows += rows_of(mode, rounds.run(lineup.of(mode)))
    versions = made.versions | {"transformers": version("transformers")}
    return Comparison(config, settings.attention, proof, made, model.weights_sha256, versions, rows)


def baseline_of(config: StudyConfig) -> DecoderEntry:
    """The study's first baseline: our AR."""
    found = next((entry for entry in config.decoders if entry.baseline), None)
    if found is None:
        raise ConfigError(
            "peers needs a baseline among decoders= (one with `baseline: true`, such as ar): it is "
            "what generate is compared with"
        )
    return found


def _in_float32(config: StudyConfig, device: torch.device, prompts: Sequence[Prompt]) -> ImageModel:
    """The study's model in float32, whatever the backend's dtype, step by step: what is compared
    are weights, and compiling a step of another dtype could take minutes."""
    from bench.run.session import load_model

    backend = dataclasses.replace(config.backend, dtype="float32")
    loaded = load_model(dataclasses.replace(config, backend=backend), device, prompts)
    return dataclasses.replace(loaded, execution=None)
