"""Names in a profile: which step, phase and part of a decoder an operator belongs to.

From outside, for as long as a profile is recorded: a decoder's execution is wrapped, which knows
where a step begins; its pieces carry the phases; and, where pieces run operator by operator, the
calls of a step's parts (target forward, head, drafter, tree, rule, commit) are wrapped as well.
Inside a compiled or recorded step there are no such calls, and phases are all there is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch.autograd.profiler import record_function

from decoders.cache import KVCache

PREFIX = "bench/"
STEP = "step"
TARGET, HEAD, DRAFTER, TREE, RULE, COMMIT = (
    "target forward", "head", "drafter", "tree", "rule", "cache commit",
)  # fmt: skip


class Window:
    """Lets the profiler run over `count` steps from step `first` on."""

    def __init__(self, profiler: Any, first: int, count: int) -> None:
        self.profiler, self.first, self.last = profiler, first, first + count - 1
        self.at, self.running = 0, False

    @contextmanager
    def step(self) -> Iterator[None]:
        if self.at == self.first:
            self.profiler.start()
            self.running = True
        with record_function(PREFIX + STEP):
            yield
        if self.at == self.last:
            self.stop()
        self.at += 1

    def stop(self) -> None:
        """Ends the recording, if it runs."""
        if self.running:
            self.running = False
            self.profiler.stop()


class SteppedExecution:
    """A decoder's execution that tells a window of every step, and names the pieces that it has put
    in the place of the loop's."""

    def __init__(self, inner: Any, window: Window) -> None:
        self.inner, self.window = inner, window

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def begin(self, loop: Any, run: Any) -> Any:
        run = self.inner.begin(loop, run)
        if id(loop) in run.pieces:
            run.pieces[id(loop)] = _named(run.pieces[id(loop)])
        return run

    def step(self, loop: Any, run: Any) -> tuple[Any, ...]:
        if hasattr(run, "room"):  # codes that a step may choose: steps are told apart
            run.room = 1
        with self.window.step():
            out: tuple[Any, ...] = self.inner.step(loop, run)
        return out


@contextmanager
def annotated(decoder: Any, window: Window) -> Iterator[None]:
    """Names everything of `decoder` for the block and leaves it as it was. A decoder without an
    execution (a plug-in's loop) is one step as a whole."""
    with ExitStack() as stack:
        execution = decoder.execution
        if execution is None:
            put(stack, decoder, "generate", around(window.step, decoder.generate))
        else:
            put(stack, decoder, "execution", SteppedExecution(execution, window))
            pieces = decoder.pieces
            put(stack, decoder, "pieces", lambda: _named(pieces()))
        if execution is None or execution.name == "eager":
            _parts(stack, decoder)
        stack.callback(window.stop)
        yield


def around(
    context: Callable[[], Any], work: Callable[..., Any], after: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """`work` inside a context; after: what is done with its result."""

    @functools.wraps(work)
    def call(*args: Any, **kwargs: Any) -> Any:
        with context():
            found = work(*args, **kwargs)
        return after(found) if after else found

    return call


def labelled(label: str, work: Callable[..., Any]) -> Any:
    """`work` under a name of the profile."""
    return around(lambda: record_function(PREFIX + label), work)


def put(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Sets an attribute of an object, frozen or a module as it may be, until the stack closes."""
    own = vars(owner)
    if name in own:
        stack.callback(object.__setattr__, owner, name, own[name])
    else:
        stack.callback(object.__delattr__, owner, name)
    object.__setattr__(owner, name, value)


def _named(pieces: Any) -> list[Any]:
    """The pieces under the names of their phases, once each; `__name__` stays, by which an
    execution replaces them."""
    out = []
    for phase, piece in pieces:
        if not hasattr(piece, "phase"):
            piece = labelled(phase, piece)
            piece.phase = phase
        out.append((phase, piece))
    return out


def _parts(stack: ExitStack, decoder: Any) -> None:
    """Names the calls inside pieces; an object that cannot take an attribute keeps its phase."""
    target = None if decoder.model is None else decoder.model.target
    parts = [
        (target, "forward_codes", partial(labelled, TARGET)),
        (target, "logits", partial(labelled, HEAD)),
        (decoder.tree, "grow", partial(labelled, TREE)),
        (decoder.rule, "test", partial(labelled, RULE)),
        (decoder.rule, "greedy", partial(labelled, RULE)),
        (decoder.drafter, "begin", partial(around, nullcontext, after=_session)),
        (target, "new_cache", partial(around, nullcontext, after=_cache)),
    ]
    for owner, name, made in parts:
        if hasattr(owner, "__dict__"):
            put(stack, owner, name, made(getattr(owner, name)))


def _session(session: Any) -> Any:
    """A session lives for one image, so nothing need be put back."""
    if hasattr(session, "__dict__"):
        session.advance = labelled(DRAFTER, session.advance)
        session.expand = labelled(DRAFTER, session.expand)
    return session


def _cache(cache: Any) -> Any:
    """A cache lives for one image; a wider one takes its place as the image grows."""
    if isinstance(cache, KVCache):
        cache.commit = labelled(COMMIT, cache.commit)  # type: ignore[method-assign]
        cache.widened = around(nullcontext, cache.widened, _cache)  # type: ignore[method-assign]
    return cache
