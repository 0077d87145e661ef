"""The documents speak of commands, options and files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from dspine.cli import app
from dspine.config import read_recipe

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.md", "recipes/*", "drafters/*/README.md")
    for path in ROOT.glob(pattern)
)
FENCED = re.compile(r"`([^`\n]+)`|^(?:    |#   )(.+)$", re.MULTILINE)  # code in a line, and lines of code
COMMAND = re.compile(r"(?<![\w./-])dspine (data check|[a-z][a-z-]*)([^#|&\n]*)")
PLACE = re.compile(r"(?<![\w/.-])((?:bench|recipes|tests|docs|src|drafters)/[\w./-]+\.(?:py|sh|yaml|md|jsonl))")


def options() -> dict[str, set[str]]:
    """What each command understands."""
    group = typer.main.get_command(app)
    named = dict(group.commands)  # type: ignore[attr-defined]
    named["data check"] = named.pop("data").commands["check"]
    return {name: {word for p in each.params for word in (*p.opts, *p.secondary_opts)} for name, each in named.items()}


def shown(page: Path) -> list[str]:
    """The pieces of code of a page."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return [inline or line for inline, line in FENCED.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_places_are_there(page: Path) -> None:
    known, wrong = options(), []
    for code in shown(page):
        for name, words in COMMAND.findall(code):
            if name not in known:
                wrong += [] if name in ("import", "is") else [f"dspine {name}"]
                continue
            given = re.findall(r"(?<!\S)--[a-z][a-z-]*", words)
            wrong += [f"dspine {name} {word}" for word in given if word not in known[name] | {"--help"}]
    text = page.read_text(encoding="utf-8")
    linked = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    wrong += [link for link in linked if not (page.parent / link).exists()]
    wrong += [place for place in PLACE.findall(text) if not any((r / place).exists() for r in (ROOT, page.parent))]
    assert wrong == []


def test_links_to_a_section_find_it() -> None:
    wrong = []
    for page in PAGES:
        for link, section in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
            heads = re.findall(r"^#+ (.+)$", (page.parent / link if link else page).read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            wrong += [] if section in anchors else [f"{page.name}: {link}#{section}"]
    assert wrong == []


def test_the_smallest_recipe_is_one(tmp_path: Path) -> None:
    text = (ROOT / "recipes/README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(block)
    recipe = read_recipe(str(path), [])
    assert str(recipe.output) == "runs/mine"
    assert str(recipe.data.responses) == "runs/mine/responses.jsonl"
