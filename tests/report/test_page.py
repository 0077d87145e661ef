"""The page stands by itself, links to what is there, and says in words and marks what its colours say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.report.results import ablation, decoded, everything

from dspine.report.decoded import by_round, visible
from dspine.report.page import write
from dspine.report.section import called


class Seen(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, list[Path], Seen]:
    folder = tmp_path_factory.mktemp("report")
    everything(folder / "runs")
    page, pictures = write([folder / "runs"], folder / "out", "All & sundry")
    return page, pictures, Seen(page.read_text(encoding="utf-8"))


def test_nothing_is_asked_of_a_network(made):
    page, _, seen = made
    for tag, attributes in seen.tags:
        for name in ("src", "srcset", "href"):
            link = attributes.get(name)
            assert link is None or link.startswith(("data:", "#")), (tag, link)
    assert not seen.all("script")
    assert "http://" not in page.read_text()
    assert "https://" not in page.read_text()
    assert "@import" not in page.read_text()


def test_every_link_leads_somewhere_and_every_name_is_there_once(made):
    _, _, seen = made
    names = [attributes["id"] for _, attributes in seen.tags if attributes.get("id")]
    assert len(set(names)) == len(names)
    links = [attributes["href"] for attributes in seen.all("a")]
    assert {link.removeprefix("#") for link in links} == set(names)


def test_every_chart_is_in_the_page_in_both_themes_and_beside_it(made):
    page, pictures, seen = made
    images = seen.all("img")
    assert len(images) == len(seen.all("source")) == len(pictures) == 16
    assert all(image["alt"] for image in images)
    for path in pictures:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.parent == page.parent / "figures"


def test_every_kind_of_result_has_its_section(made):
    _, _, seen = made
    for words in (
        "Acceptance, nano, T = 0, float32, at most 64 tokens",
        "Speed, nano",
        "Ablation",
        "Methods at one budget",
        *(f"Probe: {what}" for what in ("reader", "timing", "predecessor", "injection")),
        "Answers token by token",
    ):
        assert words in seen.text
    assert "3.50" in seen.text, "the pooled tau of two answers that keep 3 and 4"
    assert "1.90 (1.80-2.00)" in seen.text
    assert "-0.200" in seen.text, "no-gate against full"


def test_tokens_say_round_origin_and_runner_up_in_words_and_marks(made):
    _, _, seen = made
    titles = [attributes["title"] for attributes in seen.all("span") if attributes.get("title")]
    assert titles[2] == "round 1, corrected, 75.0 %; runner-up ' ducks', 12.5 %"
    assert "·eggs ✗" in seen.text
    assert ".⏎ ✓" in seen.text
    assert "·ducks" in seen.text
    assert "·<b>" in seen.text, "an answer's own markup is text"


def test_the_page_is_the_same_but_for_its_date(tmp_path):
    ablation(tmp_path)
    decoded(tmp_path)
    texts = []
    for name in ("one", "two"):
        page, _ = write([tmp_path], tmp_path / name, "t")
        texts.append(re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", page.read_text()))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("name", "short"),
    [("nano", "nano"), ("/a/runs/lab/dflash/seed-0/drafter", "dflash/seed-0"), ("org/Model", "org/Model")],
)
def test_a_folder_is_called_by_its_end(name, short):
    assert called(name) == short


def test_rounds_keep_their_tokens():
    tokens = [{"text": "a", "round": n, "kind": "plain", "chance": 1, "runner_up": "b", "runner_up_chance": 0}
              for n in (0, 1, 1, 2)]  # fmt: skip
    assert [(number, len(group)) for number, group in by_round(tokens)] == [(0, 1), (1, 2), (2, 1)]


@pytest.mark.parametrize(("text", "shown"), [(" a", "·a"), ("a \n", "a ⏎"), ("  ", "␣␣"), ("", "…"), ("\t", "⇥")])
def test_white_space_can_be_seen(text, shown):
    assert visible(text) == shown
