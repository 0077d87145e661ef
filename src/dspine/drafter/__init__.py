"""The drafter room: networks only. Nothing here knows of engines, tokenizers or files."""

from dspine.drafter.config import DSpineConfig
from dspine.drafter.dflash import DFlashConfig
from dspine.drafter.dflash2 import DFlash2Config
from dspine.drafter.domino import DominoConfig
from dspine.drafter.dspark import DSparkConfig
from dspine.drafter.dspine import DSpine
from dspine.drafter.eagle3 import Eagle3, Eagle3Config
from dspine.drafter.parallel import ParallelDrafter
from dspine.drafter.proposal import Drafter, Proposal
from dspine.drafter.registry import KINDS, Network, kind_of
from dspine.drafter.transfer import TransferSpace

__all__ = [
    "KINDS",
    "DFlash2Config",
    "DFlashConfig",
    "DSparkConfig",
    "DSpine",
    "DSpineConfig",
    "DominoConfig",
    "Drafter",
    "Eagle3",
    "Eagle3Config",
    "Network",
    "ParallelDrafter",
    "Proposal",
    "TransferSpace",
    "kind_of",
]
