"""`replicate=k`: the same study on other prompts under other seeds, in a folder of its own; and a
folder that is resumed on a machine with other rates says so."""

from pathlib import Path

import pytest

from bench.config.compose import compose_study
from bench.config.schema import LoaderConfig
from bench.errors import ConfigError, FolderError, PromptError
from bench.measure.roofline import MachineRates
from bench.prompts import load_prompts
from bench.run.session import measure_machine
from bench.run.study import run_study
from tests.bench import fakes
from tests.bench.measure.test_roofline import MEASURE, REAL

FEW = "decoders=[fake_ar,fake_spec]", "latency.blocks=1", "gate=false", "metric=none"


def test_a_replicate_has_other_prompts_other_seeds_and_its_own_folder(fake_study, tmp_path):
    runs = []
    for k in (0, 1):
        config = fake_study(*FEW, f"replicate={k}", f"run_dir={tmp_path / str(k)}")
        runs.append(run_study(config).rows)
    for protocol in ("latency", "quality", "reseed"):
        first, second = (rows[rows.protocol == protocol] for rows in runs)
        assert len(first) == len(second) > 0
        assert not {*first.prompt} & {*second.prompt}
    assert not {*runs[0].seed} & {*runs[1].seed}
    assert len({*runs[0].config_hash, *runs[1].config_hash}) == 2
    again = fake_study(*FEW, "replicate=1", f"run_dir={tmp_path / '0'}")
    with pytest.raises(FolderError, match="replicate: not set in the folder, 1 asked for"):
        run_study(again)


def test_its_folder_is_named_after_it_unless_it_is_said():
    words = fakes.SEARCHPATH, "study=fake"
    for more, folder in (
        ((), "results/runs/fake"),
        (("replicate=2",), "results/runs/fake-2"),
        (("replicate=2", "name=mine"), "results/runs/mine-2"),
        (("replicate=2", "run_dir=here"), "here"),
    ):
        assert Path(compose_study([*words, *more]).run_dir) == Path(folder)
    with pytest.raises(ConfigError, match=r"no room below 2\*\*63 .* in replicate=3"):
        compose_study([*words, "replicate=3", f"seed={2**63 - 4}"])


def test_a_set_with_too_few_prompts_says_how_many_it_has(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"prompt {i}\n" for i in range(7)))
    values = {"name": "file", "_target_": "bench.prompts.sources.file", "path": str(path)}
    loader = LoaderConfig.of(values, "prompts")
    assert [p.text for p in load_prompts(loader, 3, 1)] == ["prompt 3", "prompt 4", "prompt 5"]
    with pytest.raises(PromptError, match=r"has 7 prompts, replicate=2 needs 9.* 0 to 1$"):
        load_prompts(loader, 3, 2)


def test_a_run_that_goes_on_at_other_rates_says_so(fake_run, monkeypatch, caplog):
    _, result = fake_run(*REAL)
    monkeypatch.setattr(MEASURE, lambda *_: {"step_bytes_per_s": 2e10, "operations_per_s": 4e11})
    measure_machine(result.path, result.model, MachineRates(2.2e10, 5e11))
    assert "a factor of" not in caplog.text
    measure_machine(result.path, result.model, MachineRates(2e10, 9.6e11))
    assert "multiplies 960 Gflop/s, and now it reads 20 GB/s" in caplog.text
    assert "a factor of 2.4" in caplog.text
