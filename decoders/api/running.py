"""How a decoder is run: what the harness calls, what an execution asks of a loop, and what a loop
asks of an execution."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from torch import Tensor

from decoders.api.data import Generation, Sampling, TextFeatures
from decoders.api.model import ImageModel, Target
from decoders.api.parts import AcceptRule, Drafter, Proposer, Tree, Verifier

Piece = tuple[str, Callable[..., tuple[Any, ...]]]  # (phase that its time is charged to, function)


class Loop(Protocol):
    """What an execution runs. Its step is a chain of *pieces*, functions of the run's state
    (`decoders.loops.base_loop.DecodeState`), each given what the one before returned. Pieces have
    static shapes and never wait for the device."""

    prepared: dict[Any, Any]  # what an execution keeps for this loop, by the run's shape
    # Names of pieces that are not compiled: one that chooses how a step goes on by Python numbers,
    # or is not worth it. All others are compiled once for each shape of their input.
    uncompiled_pieces: frozenset[str] = frozenset()
    # False: steps have several shapes, or threads; on a GPU they then run operator by operator.
    capturable: bool = True

    @abstractmethod
    def pieces(self) -> Sequence[Piece]:
        """The chain of one step: the first is called with the run alone, each later one with the
        run and what the one before returned."""


class Execution(Protocol):
    name: ClassVar[str]

    def prepare(self, model: ImageModel) -> ImageModel:
        """The model as this execution runs it: modules of its nets may be replaced, in copies that
        share the weights. Called once it is loaded, its weights final. Raises DecoderError where
        the execution cannot run here."""
        return model

    def fit(self, loop: Any) -> None:
        """Called once when a loop is built: prepares its target and its drafter's net likewise,
        where `prepare` has not seen them."""
        return None

    def new_cache(self, target: Target, rows: int, capacity: int) -> Any:
        """`target.new_cache`, or one whose memory the loops of this execution share: only one of
        them runs at a time."""
        return target.new_cache(rows, capacity)

    def prefill(self, target: Target, text: TextFeatures, copies: int, cache: Any) -> Tensor:
        """`target.prefill` on G copies of the captions, run as this execution runs a step."""
        return target.prefill(text, copies, cache)

    @abstractmethod
    def begin(self, loop: Loop, state: Any) -> Any:
        """The run to go on with: the given one, or one whose tensors stay where a captured step
        expects them."""

    @abstractmethod
    def step(self, loop: Loop, state: Any, carries: list[Any] | None = None) -> tuple[Any, ...]:
        """One step; returns what the last piece returned, and appends what each piece returned to
        `carries`. Charges laps to `state.watch`."""

    def uncompiled(self) -> Execution | None:
        """The same without a compiler, to compare with; None where it compiles nothing, or where
        another way of adding up makes other codes."""
        return None

    def original(self, target: Target) -> Target:
        """The target as it was before `prepare`."""
        return target

    def stop_capturing(self, loop: Loop) -> bool:
        """Called where a loop's last run has failed. Where it was captured to save time alone, runs
        of its shape go on operator by operator, its memory is freed, and this returns True: then
        the run may be tried again."""
        return False

    def captured_state(self, loop: Loop, shape: Any) -> Any:
        """The run on whose tensors this loop's steps of a shape were captured. A new image may be
        prefilled into its cache, which saves a copy. None where nothing was captured."""
        return None


class Decoder(Protocol):
    """What the harness runs. ``generate`` may be called with any batch size."""

    sampling: Sampling
    model: ImageModel | None = None  # on which it was built
    proposer: Proposer | None = None
    verifier: Verifier | None = None
    execution: Execution | None = None  # of a loop that one runs
    prepared: MutableMapping[Any, Any] = {}  # noqa: RUF012  # see `Loop`; read here, never written
    # False: codes are committed untested, or from a context that is not complete. The gate then
    # says how far their distribution lies from the target's, and does not hold it against the
    # decoder.
    claims_law: bool = True
    refills: bool = False  # whether `generate` takes `rows`
    target_changed: bool = False  # whether codes are those of another target than the model's own
    # Options under which small random models run every part of the loop, for the gate (where a
    # threshold is made for trained ones).
    exercised: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    @property
    def drafter(self) -> Drafter | None:
        """The proposer's drafter; None where it has none."""
        return None if self.proposer is None else self.proposer.drafter

    @property
    def tree(self) -> Tree | None:
        """The proposer's tree; None where it has none."""
        return None if self.proposer is None else self.proposer.tree

    @property
    def rule(self) -> AcceptRule | None:
        """The verifier's acceptance rule; None where it judges whole drafts."""
        return None if self.verifier is None else self.verifier.rule

    def warm_up(self, text: TextFeatures, noise: Any, steps: int) -> object:
        """Decodes without a result, so that what follows finds caches and clock as it leaves them.
        steps: how many are enough; a decoder without steps decodes a whole image."""
        return self.generate(text, noise)

    @abstractmethod
    def generate(
        self, text: TextFeatures, noise: Any, *, pairs: float = 0, rows: int | None = None
    ) -> Generation:
        """Decodes one image per row of `text`.

        noise: a `decoders.noise.Noise` of the same batch. pairs: verified (p, q) pairs to record of
        an image, on average (0: none); its noise decides which, not its batch. rows: how many
        images are decoded at once (None: all). The next image takes the place of a finished one;
        its codes are those of a batch of one. A decoder that says so (`refills`) takes this
        parameter. Of others no refilled batches are timed, and quality images are decoded batch by
        batch.
        """
