"""`dspine info`: what a target, a drafter or a recipe is made of."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, note, print_json, waiting
from dspine.cli.models import SHIPPED_FOR, refuse_drafter


class Kind(StrEnum):
    """What a name can stand for."""

    target = "target"
    drafter = "drafter"
    recipe = "recipe"


def info(
    name: Annotated[
        str, typer.Argument(help="A target, a drafter, or a recipe, by name or place.", show_default=False)
    ],
    kind: Annotated[
        Kind | None,
        typer.Option(help="What the name stands for, where it could be several things.", show_default=False),
    ] = None,
    as_json: o.JsonOption = False,
) -> None:
    """Describe a target, a drafter or a recipe: sizes, digests, tapped layers, vocabulary.

    Examples:

        dspine info smollm2

        dspine info drafters/smollm2-135m-dspine --json

        dspine info nano --kind drafter
    """
    kind = kind or _kind(name)
    facts = {Kind.target: _target, Kind.drafter: _drafter, Kind.recipe: _recipe}[kind](name)
    if as_json:
        print_json({"kind": kind.value, "name": name, **facts})
    else:
        answer(_lines({"kind": kind.value, "name": name, **facts}))


def _kind(name: str) -> Kind:
    """What a name stands for: a recipe ends in .yaml or is shipped, a drafter has a drafter's config; else a target.

    A shipped name that is a target's too stands for the target.
    """
    from dspine.checkpoint import SHIPPED
    from dspine.checkpoint.opening import is_drafter
    from dspine.config import shipped_recipes

    path = Path(name)
    if path.suffix in (".yaml", ".yml") or (name in shipped_recipes() and name not in SHIPPED_FOR):
        return Kind.recipe
    if name in SHIPPED and name not in SHIPPED_FOR:
        return Kind.drafter
    return Kind.drafter if (path / "config.json").is_file() and is_drafter(path) else Kind.target


def _target(name: str) -> dict[str, Any]:
    from dspine.target import load_target
    from dspine.target.chat import template_digest

    refuse_drafter(name)
    with waiting(f"Loading {name}"):
        target = load_target(name, packed=False)
    parameters = {id(p): p for p in target.model.parameters()}.values()
    return {
        "parameters": sum(p.numel() for p in parameters),
        "bytes": sum(p.numel() * p.element_size() for p in parameters),
        "dtype": str(target.dtype).removeprefix("torch."),
        **asdict(target.facts),
        "decodable_ids": target.decodable,
        "eos_ids": sorted(target.eos_ids),
        "head_digest": target.head_digest,
        "template_digest": template_digest(target),
        "shipped_drafter": SHIPPED_FOR.get(name),
    }


def _drafter(name: str) -> dict[str, Any]:
    from dspine.checkpoint import drafter_digest, find_drafter
    from dspine.checkpoint.opening import open_checkpoint
    from dspine.drafter.registry import kind_for

    checkpoint = open_checkpoint(find_drafter(name))
    config = checkpoint.config
    for warning in checkpoint.notes:
        note(f"warning: {warning}")
    return {
        "folder": str(config.folder),
        "layout": config.layout,
        "digest": drafter_digest(name),
        "parameters": sum(prod(shape) for shape in checkpoint.trained.values()),
        "candidates": config.drafter.candidates,
        "method": kind_for(config.drafter).title,
        **asdict(config.drafter),
        "draft_vocabulary": config.vocabulary.size if config.vocabulary else None,
        "target": asdict(config.target) if config.target else None,
        "written_by": config.written_by,
        "training": dict(config.training),
        "unknown_keys": dict(config.unknown),
    }


def _recipe(name: str) -> dict[str, Any]:
    from dspine.config import read_recipe

    return read_recipe(name).model_dump(mode="json")


def _lines(facts: dict[str, Any]) -> str:
    """Facts, one a line; those of a section are written section.key, and what is empty is left out."""
    rows = [(key, value) for key, value in _flat(facts) if value not in (None, "", (), [])]
    width = max(len(key) for key, _ in rows)
    return "".join(f"{key:<{width}}  {_text(value)}\n" for key, value in rows)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in facts.items():
        rows += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return rows
