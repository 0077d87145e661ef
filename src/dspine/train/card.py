"""The model card of a trained drafter: README.md in its folder, from what the run knows of itself.

One rule: it holds nothing that was not measured or set, and never replaces a card that somebody wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dspine import __version__
from dspine.checkpoint import drafter_digest
from dspine.drafter.registry import KINDS
from dspine.durable import write_aside
from dspine.train.prepare import Prepared

CARD = "README.md"
OURS = "<!-- Written by `dspine train`; remove this line to keep your own text. -->\n"


def write_card(prepared: Prepared, folder: Path, facts: Mapping[str, Any]) -> bool:
    """Write the card of the drafter in `folder`; False where a card of somebody's own is there.

    Args:
        facts: of the run, as its config.json has them.
    """
    path = folder / CARD
    if path.exists() and not path.read_text(encoding="utf-8").startswith(OURS):
        return False
    write_aside(path, card(prepared, folder, facts).encode())
    return True


def card(prepared: Prepared, folder: Path, facts: Mapping[str, Any]) -> str:
    """The card's text."""
    recipe, target, drafter = prepared.recipe, prepared.target, prepared.drafter
    parameters = sum(p.numel() for p in drafter.parameters())
    trained = sum(p.numel() for p in drafter.parameters() if p.requires_grad)
    vocabulary = "the target's" if drafter.draft_ids is None else f"{len(drafter.draft_ids)} ids"
    taps = ", ".join(map(str, drafter.target_layer_ids))
    rows = {
        "target": f"{target.name}, head `{target.head_digest[:12]}`",
        "method": KINDS[recipe.drafter.kind].title,
        "network": f"{parameters / 1e6:.2f} M parameters, {drafter.candidates} candidates a round, taps {taps}",
        "draft vocabulary": f"{vocabulary}; it holds {prepared.coverage:.2%} of the response tokens",
        "drafter digest": f"`{drafter_digest(folder)[:12]}`",
    }
    if recipe.training.only is not None:
        start = f"{recipe.drafter.start_from} (`{facts['start_from'][:12]}`)"
        rows["trained here"] = f"the confidence's {trained} parameters; all else is as in {start}"
    table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    settings = yaml.safe_dump(recipe.model_dump(mode="json", exclude_defaults=True), sort_keys=False, width=100)
    return f"""{OURS}# A {rows["method"]} drafter for {target.name}

| | |
|---|---|
{table}
    dspine generate "..." --target {recipe.target} --drafter {folder}

## Data

{facts["samples"]} sequences that the target answered itself ({recipe.data.responses}, digest
`{str(facts["responses_digest"])[:12]}`), thinking {"on" if recipe.data.thinking else "off"};
{len(prepared.unused)} more had nothing to train on. {facts["blocks"]} blocks with {facts["labels"]} labels in
{facts["steps"]} steps ({facts["skipped_steps"]} skipped), {facts["minutes"]} minutes.

## Acceptance

{_acceptance(facts.get("acceptance"), recipe.evaluate.max_new_tokens)}

## Recipe

`dspine train` (dspine {__version__}) with:

```yaml
{settings}```

## Limits

* It belongs to this target, chat template and thinking flag; with another target it is refused.
* It decides how fast the target answers, never what it answers.
* Acceptance falls on kinds of prompts that the data does not hold; measure on your own with `dspine eval`.
"""


def _acceptance(measured: Mapping[str, Any] | None, longest: int) -> str:
    if measured is None:
        return "Not measured: the recipe holds no prompts out."
    text = (
        f"tau = {measured['tau']:.3f} tokens kept a round, greedy, on {measured['prompts']} held-out prompts, "
        f"{measured['rounds']} rounds, at most {longest} new tokens."
    )
    if measured["tau_unrefined"] is not None:
        text += f" Without last-write refinement: {measured['tau_unrefined']:.3f}."
    if (first := measured.get("first_place")) is not None:
        text += (
            f" First candidates that are the target's token: {first['generated']:.1%} in generation, "
            f"{first['teacher_forced']:.1%} by the training forward at the same places."
        )
    return text
