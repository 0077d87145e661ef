"""The checkpoint room: drafters on disk, one file a layout."""

from dspine.checkpoint.export import LayoutName, check_export, export_drafter
from dspine.checkpoint.fit import check_mask_token
from dspine.checkpoint.loading import CheckpointWarning, load_drafter
from dspine.checkpoint.opening import SHIPPED, drafter_digest, find_drafter, read_config
from dspine.checkpoint.record import CheckpointConfig
from dspine.checkpoint.saving import export_specforge, save_drafter

__all__ = [
    "SHIPPED",
    "CheckpointConfig",
    "CheckpointWarning",
    "LayoutName",
    "check_export",
    "check_mask_token",
    "drafter_digest",
    "export_drafter",
    "export_specforge",
    "find_drafter",
    "load_drafter",
    "read_config",
    "save_drafter",
]
