"""`dspine regenerate`: prompts answered by the target, as training data."""

from __future__ import annotations


def regenerate() -> None:
    """x"""
