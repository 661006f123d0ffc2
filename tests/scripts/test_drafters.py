"""`python -m scripts.drafters`: a run beside what the model card says of the trainings."""

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from scripts.drafters import main
from tests.bench.report.synthetic import Made, write_run

DECODERS = (
    Made("ar"),
    Made("eagle_chain", "exact", "chain(depth=3)", 3, 0.5, 2.0),
    Made("eagle3_chain", "exact", "chain(depth=3)", 3, 0.6, 1.6),
    Made("early_exit_chain", "exact", "chain(depth=3)", 3, 0.3, 3.0),
)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Two drafters: EAGLE of ten minutes, and one that went on from it for two."""
    folder = tmp_path / "weights"
    folder.mkdir()
    save_file({"a": torch.zeros(3, 5)}, folder / "eagle.safetensors")
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(2)}, folder / "eagle3.safetensors")
    overlap = {f"valid_overlap_{d}": 0.5 for d in range(1, 9)}
    later = overlap | {"seconds": 900.0, "cpu_seconds": 120.0}
    card = {
        "eagle": {"figures": {"seconds": 600.0, **overlap}},
        "eagle3": {"figures": later, "start": "eagle"},
    }
    (folder / "models.json").write_text(json.dumps(card))
    return folder


def test_every_drafter_has_its_line(tmp_path, weights):
    """Of two runs, the fastest first."""
    for name, made in (("run", DECODERS[:3]), ("more", (DECODERS[0], DECODERS[3]))):
        write_run(tmp_path / name, made, prompts=2, reseed=False, images=False)
    runs = [str(tmp_path / name) for name in ("run", "more")]
    assert main([*runs, f"weights={weights}", f"out={tmp_path / 'out'}"]) == 0
    with (tmp_path / "out" / "drafters.csv").open() as file:
        lines = {line["drafter"]: line for line in csv.DictReader(file)}
    assert list(lines) == ["eagle3", "eagle", "early_exit"]
    assert [float(line["minutes"]) for line in lines.values()] == [12, 10, 0]
    assert [int(line["parameters"]) for line in lines.values()] == [17, 15, 0]
    assert float(lines["eagle3"]["speedup"]) == pytest.approx(2.4 / 1.6)
    made = float(lines["eagle"]["codes_per_forward"])
    assert float(lines["eagle"]["calibration"]) == pytest.approx(1.5 / made)
    assert lines["eagle"]["overlap_4"] == "0.5" and lines["early_exit"]["overlap_4"] == "nan"
    assert (tmp_path / "out" / "drafters.svg").read_text().count("eagle3") >= 1
    assert "eagle3" in (tmp_path / "out" / "drafters.md").read_text()


@pytest.mark.parametrize(
    ("names", "says"), [([], "expected a run, found none"), (["run"], "begins with a drafter of")]
)
def test_what_it_cannot_read_is_refused(names, says, tmp_path, weights, capsys):
    write_run(tmp_path / "run", DECODERS[:1], prompts=1, reseed=False, images=False)
    assert main([*(str(tmp_path / n) for n in names), f"weights={weights}"]) == 2
    assert says in capsys.readouterr().err
