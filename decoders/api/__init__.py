"""The contracts of the code base: what a model, a drafter, a tree, an acceptance rule, a loop and
an execution are. Everything a caller outside `decoders` may rely on can be imported from here.

A decoder is *composed*: loop x proposer x verifier, run by an execution. A drafter with a tree is
one proposer (`decoders.propose.tree_proposer`), an acceptance rule makes one verifier
(`decoders.verify.token_verifier`). Concrete classes are reached by their dotted path
(``decoders.verify.lantern.Lantern``) through `decoders.compose`.

Notation (METHODS section 2): B batch, L image length in codes, V vocabulary, D width, P prefix
length, N nodes of a draft tree without the root, K children of a node, G guidance rows (2 with
guidance, 1 without), R = G * B rows of a model call, ordered [conditional rows; unconditional
rows].

Conventions for plug-ins: every part is built as ``cls(model, **yaml_keywords)``; a loop as
``cls(model, sampling=..., proposer=..., verifier=..., **yaml_keywords)``. A class need not inherit
its contract. What a contract gives a value or a body is optional: `completed` fills it in.
"""

from decoders.api.data import TRACE_COLUMNS as TRACE_COLUMNS
from decoders.api.data import CodeKind as CodeKind
from decoders.api.data import Generation as Generation
from decoders.api.data import Sampling as Sampling
from decoders.api.data import TextFeatures as TextFeatures
from decoders.api.data import Trace as Trace
from decoders.api.data import TraceColumn as TraceColumn
from decoders.api.data import VerifiedPairs as VerifiedPairs
from decoders.api.model import ImageModel as ImageModel
from decoders.api.model import ImageTokenizer as ImageTokenizer
from decoders.api.model import Target as Target
from decoders.api.model import TextEncoder as TextEncoder
from decoders.api.model import completed as completed
from decoders.api.parts import Acceptance as Acceptance
from decoders.api.parts import AcceptRule as AcceptRule
from decoders.api.parts import Draft as Draft
from decoders.api.parts import Drafter as Drafter
from decoders.api.parts import DraftSession as DraftSession
from decoders.api.parts import Prefill as Prefill
from decoders.api.parts import Proposer as Proposer
from decoders.api.parts import ProposerSession as ProposerSession
from decoders.api.parts import StepOutput as StepOutput
from decoders.api.parts import TargetProbs as TargetProbs
from decoders.api.parts import Tree as Tree
from decoders.api.parts import Verified as Verified
from decoders.api.parts import Verifier as Verifier
from decoders.api.running import Decoder as Decoder
from decoders.api.running import Execution as Execution
from decoders.api.running import Loop as Loop
from decoders.api.running import Piece as Piece
from decoders.errors import DecoderError as DecoderError
from decoders.errors import NumericalError as NumericalError
from decoders.errors import RefillError as RefillError
