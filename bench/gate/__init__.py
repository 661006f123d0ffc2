"""The exactness gate: is a decoder exact, within its declared bound, or neither? (METHODS 3, 4)"""

from bench.gate.check import check_decoder, check_rule
from bench.gate.small import GateSizes, RealModel
from bench.gate.verdicts import judge

__all__ = ["GateSizes", "RealModel", "check_decoder", "check_rule", "judge"]
