"""A decoder that does one hostile thing to its process, to the model or to the clock: `HOW`.

Each is a function of the model; `WANTED` says what the row of it must say, None: the row is ok.
"""

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.bench.fakes import FakeLoop


class OwnBase(BaseException):
    """No Exception: most handlers let it pass."""


def raises(error: BaseException) -> Callable[[Any], None]:
    def work(model: Any) -> None:
        raise error

    return work


def swallows(model: Any) -> None:
    """Takes what belongs to others and raises nothing itself."""
    try:
        raise KeyboardInterrupt
    except BaseException:
        gc.collect()


def forks(model: Any) -> None:
    """The child process comes back out of the call, as the parent does."""
    os.fork()


def slow_clock(model: Any) -> None:
    real = time.perf_counter
    time.perf_counter = lambda: real() / 10


def closes(model: Any) -> None:
    os.close(1)


def redirects(model: Any) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def traces(model: Any) -> None:
    sys.setprofile(lambda *_: None)


def mode(model: Any) -> None:
    class Halving(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    Halving().__enter__()


def fewer_cores(model: Any) -> None:
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)} if len(mine) > 1 else mine)
    if len(mine) == 1:  # there is nothing to take away
        os.chdir("/")


def threads(model: Any) -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)


HOW: dict[str, tuple[Callable[[Any], object], str | None]] = {
    "float64": (lambda m: torch.set_default_dtype(torch.float64), "default dtype (torch.float32"),
    "meta": (lambda m: torch.set_default_device("meta"), "default device (cpu -> meta)"),
    "grad": (lambda m: torch._C._set_grad_enabled(True), None),  # ends with the call
    "threads": (threads, "threads of torch"),
    "deterministic": (
        lambda m: torch.use_deterministic_algorithms(True, warn_only=True), "deterministic",
    ),
    "matmul": (lambda m: torch.set_float32_matmul_precision("medium"), "float32 products"),
    "cudnn": (lambda m: setattr(torch.backends.cudnn, "benchmark", True), "cuDNN"),
    "attention": (lambda m: torch.backends.cuda.enable_math_sdp(False), "kinds of attention"),
    "autocast": (lambda m: torch.set_autocast_enabled("cpu", True), None),  # as grad
    "mode": (mode, "modes of torch functions"),
    "chdir": (lambda m: os.chdir("/"), "working directory"),
    "sigint": (lambda m: signal.signal(signal.SIGINT, signal.SIG_IGN), "handlers of signals"),
    "sigterm": (lambda m: signal.signal(signal.SIGTERM, lambda *_: None), "handlers of signals"),
    "stdout": (lambda m: setattr(sys, "stdout", None), "standard streams"),
    "closes": (closes, "standard stream stdout"),
    "redirects": (redirects, "standard stream stderr"),
    "clock": (slow_clock, "clocks of `time`"),
    "sleep": (lambda m: setattr(time, "sleep", lambda s: None), "clocks of `time`"),
    "profiler": (traces, "profile function"),
    "cores": (fewer_cores, "it changed the"),
    "interrupt": (raises(KeyboardInterrupt()), "KeyboardInterrupt"),
    "generator": (raises(GeneratorExit()), "GeneratorExit"),
    "own_base": (raises(OwnBase("mine")), "OwnBase: mine"),
    "exit": (raises(SystemExit(0)), "SystemExit"),
    "swallows": (swallows, None),
    "forks": (forks, None),
}  # fmt: skip
DEADLY = {
    "exits": lambda: ctypes.CDLL(None)._exit(0),  # as os._exit, past Python
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


class Loop(FakeLoop):
    """`label` says what it does: a name of `HOW`, of `DEADLY` or of `to_the_model`."""

    def __init__(self, model: Any, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.model = model

    def generate(self, text: Any, noise: Any, *, pairs: float = 0) -> Any:
        if self.label in HOW:
            HOW[self.label][0](self.model)
        elif self.label in DEADLY:
            DEADLY[self.label]()
        else:
            to_the_model(self.label, self.model)
        return super().generate(text, noise, pairs=pairs)


def to_the_model(how: str, model: Any) -> None:
    net = model.text.net
    if how == "scales":
        net.weight.data.mul_(0.9)
    elif how == "swaps":
        net.weight.data[:] = net.weight.data.flip(0).clone()
    elif how == "buffer":
        net.scale.data.add_(1e-3)
    elif how == "codebook":
        model.tokenizer.codebook[0, 0] += 1e-3
    elif how == "hooks":
        net.register_forward_hook(lambda module, args, out: 0.9 * out)
    elif how == "forward":
        net.forward = lambda x: x
    elif how == "trains":
        net.train(not net.training)


def load_model(device: str = "cpu", dtype: str = "float32", seconds: float = 0.0) -> Any:
    """The toy model with a net of its own to change."""
    from tests.bench import fakes

    model = fakes.load_model(device, dtype, seconds)
    net = torch.nn.Linear(4, 4)
    net.register_buffer("scale", torch.ones(3))
    model.text.net = net
    model.tokenizer.codebook = model.tokenizer.codebook.clone()
    return model
