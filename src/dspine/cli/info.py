"""`dspine info`: x."""

from __future__ import annotations


def info() -> None:
    """x"""
