"""The drafter room: networks only. Nothing here knows of engines, tokenizers or files."""

from dspine.drafter.config import DSpineConfig
from dspine.drafter.dflash import DFlash, DFlashConfig
from dspine.drafter.dflash2 import DFlash2, DFlash2Config
from dspine.drafter.domino import Domino, DominoConfig
from dspine.drafter.dspark import DSpark, DSparkConfig
from dspine.drafter.dspine import DSpine
from dspine.drafter.eagle3 import Eagle3, Eagle3Config
from dspine.drafter.proposal import Drafter, Proposal
from dspine.drafter.registry import KINDS, Network, kind_of
from dspine.drafter.transfer import TransferSpace

__all__ = [
    "KINDS",
    "DFlash",
    "DFlash2",
    "DFlash2Config",
    "DFlashConfig",
    "DSpark",
    "DSparkConfig",
    "DSpine",
    "DSpineConfig",
    "Domino",
    "DominoConfig",
    "Drafter",
    "Eagle3",
    "Eagle3Config",
    "Network",
    "Proposal",
    "TransferSpace",
    "kind_of",
]
