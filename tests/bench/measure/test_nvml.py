"""What NVML says of a card: everything it can, and nothing where it is not there."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from bench.measure.device import NVML as NAMES
from bench.measure.device import card_state


class Refused(Exception):
    pass


def refuse(*_: object) -> int:
    raise Refused


def fake(**changes: object) -> SimpleNamespace:
    made = {
        "NVMLError": Refused, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2,
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"570.1",
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetClockInfo": lambda _, kind: 1000 * kind,
        "nvmlDeviceGetMaxClockInfo": lambda *_: 1980,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
    }  # fmt: skip
    return SimpleNamespace(**{**made, **changes})


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="a"))
    return torch.device("cuda")


def test_a_card_says_everything(monkeypatch, card) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake())
    found = card_state(card)
    assert tuple(found) == NAMES
    assert found["driver"] == "570.1" and found["power_limit_w"] == "700"
    assert (found["sm_clock_mhz"], found["memory_clock_mhz"]) == ("1000", "2000")


def test_what_is_refused_is_empty_and_the_rest_is_there(monkeypatch, card) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake(nvmlDeviceGetEnforcedPowerLimit=refuse))
    found = card_state(card)
    assert found["power_limit_w"] == "" and found["driver"] == "570.1"
    for broken in (fake(nvmlInit=refuse), fake(nvmlDeviceGetHandleByUUID=refuse), None):
        monkeypatch.setitem(sys.modules, "pynvml", broken)
        assert card_state(card) == dict.fromkeys(NAMES, "") | {"cuda": "13.0"}


def test_a_processor_has_no_card() -> None:
    assert card_state(torch.device("cpu")) == {}
