"""A drafter that misbehaves in one way, chosen by `how`: what a plug-in of a stranger may do.

`FAILS`: every way that must end in failed rows, with a word that the error must hold beside the
plug-in's name.
"""

import sys
from typing import Any, NoReturn

import torch
from torch import Tensor

FAILS = {
    "advance_shape": "[B, V]",
    "expand_shape": "[B, w, V]",
    "long_logits": "int64",
    "no_logits": "NoneType",
    "no_session": "NoneType",
    "not_a_number": "NaN",
    "infinite": "infinity",
    "other_device": "meta",
    "root_device": "meta",
    "root_codes": "index",
    "init_raises": "no weights",
    "begin_raises": "not today",
    "later_raises": "third step",
    "exits": "SystemExit: 3",
    "exits_at_build": "SystemExit",
    "recursion": "RecursionError",
    "surrogate": r"\udcff",
    "unprintable": "cannot be shown",
    "no_memory": "MemoryError",
    "hangs": "time_limit",
    "hangs_stubbornly": "time_limit",
    "hangs_in_begin": "time_limit",
}
HARMLESS = ("well", "prints", "masks", "odd_name")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Session:
    def __init__(self, how: str, logits: Tensor, batch: int) -> None:
        self.how, self.logits, self.calls, self.steps = how, logits, 0, 0
        device = "meta" if how == "root_device" else logits.device
        self.root_code: Any = torch.zeros(batch, dtype=torch.long, device=device)

    def advance(self, hidden: Tensor, codes: Tensor, count: Tensor, start: Tensor) -> Any:
        self.steps += 1
        self.calls += 1
        if self.how != "root_device":
            self.root_code = codes.gather(1, count[:, None] - 1)[:, 0]
        if self.how == "root_codes":
            self.root_code = self.root_code + 10**6
        right = self.logits.expand(len(codes), -1)  # [B, V]
        answers = {
            "advance_shape": lambda: right[:, 1:],
            "long_logits": lambda: right.long(),
            "no_logits": lambda: None,
            "not_a_number": lambda: right * float("nan"),
            "infinite": lambda: right + float("inf"),
            "other_device": lambda: right.to("meta"),
            "later_raises": lambda: self._later(right),
            "exits": lambda: sys.exit(3),
            "recursion": lambda: self.advance(hidden, codes, count, start),
            "surrogate": lambda: fail(ValueError("caf\udcff")),
            "unprintable": lambda: fail(Unprintable()),
            "no_memory": lambda: fail(MemoryError()),
            "hangs": lambda: hang(),
            "hangs_stubbornly": lambda: hang_stubbornly(),
            "prints": lambda: talk(right),
            "masks": lambda: right.index_fill(1, torch.tensor([0]), float("-inf")),
        }
        return answers.get(self.how, lambda: right)()

    def expand(self, codes: Tensor, nodes: Tensor, parents: Tensor, depth: int) -> Any:
        self.calls += 1
        right = self.logits.expand(*codes.shape, -1)  # [B, w, V]
        return right[0] if self.how == "expand_shape" else right

    def _later(self, right: Tensor) -> Tensor:
        return right if self.steps < 3 else fail(ValueError("at the third step"))


class Drafter:
    def __init__(self, model: Any, how: str = "well") -> None:
        self.how = how
        if how == "init_raises":
            raise OSError("no weights")
        if how == "exits_at_build":
            raise SystemExit
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.randn(model.target.vocab_size, generator=generator)

    def __str__(self) -> str:
        if self.how == "odd_name":
            raise ValueError("no name")
        return "bad \udcff" if self.how == "surrogate" else f"bad({self.how})"

    def begin(self, text: Any, hidden: Tensor, sampling: Any, most: int, nodes: int) -> Any:
        if self.how == "begin_raises":
            raise KeyError("not today")
        if self.how == "hangs_in_begin":
            hang()
        return None if self.how == "no_session" else Session(self.how, self.logits, text.batch)


def fail(error: Exception) -> NoReturn:
    raise error


def hang() -> NoReturn:
    while True:
        pass


def hang_stubbornly() -> NoReturn:
    """As a loop that tries again whatever happens."""
    while True:
        try:
            hang()
        except Exception:
            continue


def talk(right: Tensor) -> Tensor:
    print("\n".join(["a lot"] * 1000))
    return right
