"""The target room: somebody's frozen language model, how it is loaded, tapped, rolled back and spoken to."""

from dspine.target.loading import load_target
from dspine.target.model import Target, TargetOutput

__all__ = ["Target", "TargetOutput", "load_target"]
