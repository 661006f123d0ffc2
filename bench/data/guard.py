"""The state of the process around a call of a plug-in: compared and put back.

Why: all decoders of a run share one process. A default dtype, a thread count or a clock that one of
them changes would change the rows of the others, and nobody would see it. Nothing here runs inside
a timed step. A plug-in's child process that comes back out of the call ends there, so that no run
is carried on twice. A signal that stops the run is noted: no plug-in can swallow or invent one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
CLOCKS = (
    "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "process_time",
    "clock_gettime", "sleep",
)  # fmt: skip
STREAMS = ("stdin", "stdout", "stderr")
FORKED = 70  # exit status of a plug-in's child process that came back


@dataclass(frozen=True)
class Setting:
    """Something that all decoders of a process share. shown: whether its values say something."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    shown: bool = True


@dataclass
class Seen:
    """What a call did. stops: what handlers of signals raised; changed: settings put back."""

    stops: list[BaseException]
    changed: list[str]

    def __str__(self) -> str:
        return (
            f"it changed {', '.join(self.changed)}, which every decoder of the run shares (put "
            "back now); a plug-in must leave the process as it found it"
        )


@contextmanager
def guarded() -> Iterator[Seen]:
    """Around a call of a plug-in: what it changes is put back, and `changed` says what it was."""
    process = os.getpid()
    with noting_stops(STOPS) as stops, _descriptors() as changed:
        seen = Seen(stops, changed)
        before = [(setting, setting.read()) for setting in _settings()]
        try:
            yield seen
        finally:
            if os.getpid() != process:
                os._exit(FORKED)
            for setting, was in before:
                found = setting.read()
                if found != was:
                    setting.write(was)
                    shown = f" ({was} -> {found})" if setting.shown else ""
                    seen.changed.append(f"the {setting.name}{shown}")


@contextmanager
def noting_stops(
    signals: Sequence[signal.Signals], instead: type[BaseException] | None = None
) -> Iterator[list[BaseException]]:
    """Keeps what the handlers of signals raise (Ctrl-C, a scheduler's); `instead` is raised in its
    place. Python runs handlers in the main thread alone."""
    stops: list[BaseException] = []

    def noting(handler: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
        def handle(number: int, frame: Any) -> None:
            try:
                handler(number, frame)
            except BaseException as stop:
                stops.append(stop)
                if instead is None:
                    raise
                raise instead from stop

        return handle

    theirs: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        theirs = {one: handler for one in signals if callable(handler := signal.getsignal(one))}
    for number, handler in theirs.items():
        signal.signal(number, noting(handler))
    try:
        yield stops
    finally:
        for number, handler in theirs.items():
            signal.signal(number, handler)


@contextmanager
def _descriptors() -> Iterator[list[str]]:
    """Standard input, output and error of the process, which a plug-in may close or redirect; says
    what it changed."""
    kept, changed = {fd: os.dup(fd) for fd in range(len(STREAMS)) if _is_open(fd)}, list[str]()
    try:
        yield changed
    finally:
        for fd, copy in kept.items():
            if not _is_open(fd) or not os.path.sameopenfile(fd, copy):
                os.dup2(copy, fd)
                changed.append(f"the standard stream {STREAMS[fd]} of the process")
            os.close(copy)
        for fd, name in enumerate(STREAMS):
            if fd and getattr(getattr(sys, name), "closed", False):
                setattr(sys, name, os.fdopen(fd, "w", errors="backslashreplace", closefd=False))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _settings() -> list[Setting]:
    """All that is compared; of torch where it is loaded."""
    found = [
        Setting("working directory", _folder, os.chdir),
        _attributes("clocks of `time`", time, CLOCKS, False),
        _attributes("standard streams", sys, STREAMS, False),
        Setting("trace function", sys.gettrace, sys.settrace, False),
        Setting("profile function", sys.getprofile, sys.setprofile, False),
    ]
    if hasattr(os, "sched_getaffinity"):
        set_cores = partial(os.sched_setaffinity, 0)
        found.append(Setting("cores", partial(os.sched_getaffinity, 0), set_cores))
    if threading.current_thread() is threading.main_thread():
        found.append(Setting("handlers of signals", _handlers, _handle, False))
    return found + (_of_torch(sys.modules["torch"]) if "torch" in sys.modules else [])


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "a folder that is gone"


def _attributes(name: str, owner: Any, names: Sequence[str], shown: bool = True) -> Setting:
    def write(values: tuple[Any, ...]) -> None:
        for one, value in zip(names, values, strict=True):
            setattr(owner, one, value)

    return Setting(name, lambda: tuple(getattr(owner, one) for one in names), write, shown)


def _handlers() -> dict[int, Any]:
    """Of every signal whose handler Python knows."""
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in found.items() if handler is not None}


def _handle(handlers: dict[int, Any]) -> None:
    now = _handlers()
    for number, handler in handlers.items():
        if now.get(number) != handler:
            signal.signal(number, handler)


def _of_torch(torch: Any) -> list[Setting]:
    cuda, modes = torch.backends.cuda, torch.overrides._get_current_function_mode_stack
    sdp = "flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp"
    certain = (
        "are_deterministic_algorithms_enabled",
        "is_deterministic_algorithms_warn_only_enabled",
    )

    def write_modes(wanted: list[Any]) -> None:
        while len(modes()) > len(wanted):
            torch.overrides._pop_mode()

    def write_device(device: Any) -> None:
        torch.set_default_device(None if device.type == "cpu" else device)

    def write_certain(values: tuple[bool, ...]) -> None:
        torch.use_deterministic_algorithms(values[0], warn_only=values[1])

    def write_sdp(values: tuple[bool, ...]) -> None:
        for name, value in zip(sdp, values, strict=True):
            getattr(cuda, f"enable_{name}")(value)

    found: list[tuple[Any, ...]] = [
        ("default dtype", torch.get_default_dtype, torch.set_default_dtype),
        ("default device", torch.get_default_device, write_device),
        ("modes of torch functions", modes, write_modes, False),
        ("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        ("threads of torch", torch.get_num_threads, torch.set_num_threads),
        ("deterministic algorithms", _calls(torch, certain), write_certain),
        ("precision of float32 products", torch.get_float32_matmul_precision,
         torch.set_float32_matmul_precision),
        ("kinds of attention", _calls(cuda, [f"{name}_enabled" for name in sdp]), write_sdp),
        *((f"autocast on {kind}", partial(torch.is_autocast_enabled, kind),
           partial(torch.set_autocast_enabled, kind)) for kind in ("cpu", "cuda")),
    ]  # fmt: skip
    flags = "enabled", "benchmark", "deterministic"
    return [
        *(Setting(*one) for one in found),
        _attributes("flags of cuDNN", torch.backends.cudnn, flags),
        _attributes("waiting for the GPU", torch.cuda, ("synchronize",), False),
    ]


def _calls(owner: Any, names: Sequence[str]) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(getattr(owner, name)() for name in names)
