"""The drafter room: networks only. Nothing here knows of engines, tokenizers or files."""

from dspine.drafter.config import DSpineConfig
from dspine.drafter.dspine import DSpine
from dspine.drafter.proposal import Drafter, Proposal
from dspine.drafter.transfer import TransferSpace

__all__ = ["DSpine", "DSpineConfig", "Drafter", "Proposal", "TransferSpace"]
