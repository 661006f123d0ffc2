"""The card is read around timed images: a stand-in for NVML, as there is no card."""

import math
import os
import sys
from types import SimpleNamespace

import pytest
import torch

from bench.measure.card import CardState, open_card
from bench.measure.meter import Meter
from bench.run.decode import card_columns

CUDA = torch.device("cuda", 0)


class NVMLError(Exception):
    pass


class Nvml:
    """An idle card at 1,980 MHz that this process has alone."""

    NVMLError, NVML_CLOCK_SM = NVMLError, 1

    def __init__(self):
        self.clock, self.bits, self.by_pid = 1980, 0x1, {os.getpid(): 90}

    def nvmlInit(self): ...

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert uuid == "GPU-abc"
        return "card"

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return self.clock

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self.bits

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=97)

    def nvmlDeviceGetProcessUtilization(self, handle, since):
        if self.by_pid is None:
            raise NVMLError("not supported")
        return [
            SimpleNamespace(pid=pid, smUtil=use, timeStamp=since + 1)
            for pid, use in self.by_pid.items()
        ]


@pytest.fixture
def nvml(monkeypatch):
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    properties = SimpleNamespace(uuid="abc")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: properties)
    monkeypatch.setattr("torch.cuda.synchronize", lambda *_: None)
    return nvml


def timed(busy=0.1):
    meter = Meter(CUDA, busy)
    with meter.time("total"):
        pass
    return meter


def test_a_timed_image_has_the_clock_under_work(nvml):
    nvml.bits = 0x4
    row = card_columns(timed().card_state)
    assert row == {"gpu_clock": 1980, "gpu_limits": "power limit", "gpu_use": 0.97, "gpu_others": 0}


@pytest.mark.parametrize(
    ("by_pid", "bits", "disturbed"),
    [
        ({os.getpid(): 90}, 0x1, False),
        ({os.getpid(): 60, 99999999: 35}, 0x1, True),
        ({os.getpid(): 90, 99999999: 2}, 0x1, False),
        ({99999998: 90}, 0x1, False),  # in a container: this process under another number
        ({99999998: 60, 99999999: 35}, 0x1, True),
        ({os.getpid(): 90}, 0x4, False),  # a power limit is the card's own
        ({os.getpid(): 90}, 0x20, True),
        (None, 0x1, False),  # a part of a card does not tell
    ],
)
def test_others_on_the_card_and_heat_disturb(nvml, monkeypatch, by_pid, bits, disturbed):
    quiet = SimpleNamespace(own=1.0, others=0.0, steal=0.0, disturbed=False)
    monkeypatch.setattr("bench.measure.meter.between", lambda *_, **__: quiet)
    monkeypatch.setattr(
        "bench.measure.meter.replace", lambda load, disturbed: SimpleNamespace(disturbed=disturbed)
    )
    nvml.by_pid, nvml.bits = by_pid, bits
    assert timed().load.disturbed is disturbed
    assert timed(busy=1).load.disturbed is False, "latency.busy=1 counts every image"


def test_without_nvml_nothing_is_known_and_a_warning_says_what_to_install(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_card(CUDA) is None and "nvidia-ml-py" in caplog.text
    assert open_card(torch.device("cpu")) is None
    assert math.isnan(CardState().clock_mhz) and not CardState().disturbed(0.1)
