"""The page of a picture: whole in itself, and safe whatever the texts are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.calls.picture import Blocks, Picture, PictureNode, page
from forkdecode.errors import InvalidRequestError
from tests.calls.picture.browser import CHROMIUM, Browser, Parsed

HOSTILE = [
    "</script><script>document.title='owned'</script>",
    "<!--<script>",
    "]]>&lt;img src=x onerror=\"document.title='owned'\">",
    "\"quotes\" 'and' `ticks` ${title} $title \\u003c",
    "\u202eevil\u202c \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\u2028\u2029\x00\x07\ufeff \u65e5\u672c\u8a9e \U0001f600",
]


def picture(texts: list[str]) -> Picture:
    """A prompt with a child of each text; the last is pruned."""
    nodes = [PictureNode("0", None, "prompt", "Once", 1)]
    for i, text in enumerate(texts, 1):
        gone = len(texts) + 1 if i == len(texts) else None
        nodes.append(PictureNode(str(i), 0, "generated", text, 2, i, i + 1, gone, "stop", 0.5, -1.0, 1, 1))
    steps = tuple(f"step {i}" for i in range(len(texts) + 2))
    return Picture("".join(texts), steps, tuple(nodes), "".join(texts))


def chain(count: int) -> Picture:
    """A tree of many nodes, four ways, one new at each step."""
    nodes = tuple(
        PictureNode(str(i), None if i == 0 else (i - 1) // 4, "generated", f"node {i}", 3, i, i, None)
        for i in range(count)
    )
    return Picture("many", tuple(map(str, range(count))), nodes)


@given(st.lists(st.sampled_from(HOSTILE) | st.text(max_size=20), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_texts_stay_texts(texts: list[str]) -> None:
    made = page(picture(texts))
    parsed = Parsed(made)
    plain = Parsed(page(picture(["a"] * len(texts))))
    assert parsed.elements == plain.elements
    assert [node["text"] for node in parsed.data["nodes"][1:]] == texts
    assert made.isascii()
    assert parsed.scripts[1] == plain.scripts[1]


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    made = page(picture(["a"]))
    parsed = Parsed(made)
    names = {name for _, attributes in parsed.elements for name in attributes}
    assert not names & {"src", "href", "srcset", "onload", "onclick", "style"}
    policy = next(a["content"] for _, a in parsed.elements if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in policy.split("script-src")[1]
    script = parsed.scripts[1][1]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|fetch|import|https?:", script
    )


def test_pictures_survive_json() -> None:
    blocks = Blocks(4, ((0, 7, 1), (1, 7, 2)), ((0, 0, (7,)),))
    node = PictureNode("0", None, "prompt", "Once", 1, pieces=("On", "ce"), grown=(0, 1))
    whole = Picture("t", ("a", "b"), (node, *picture(HOSTILE).nodes[1:]), "n", blocks, 16)
    assert Picture.of_json(json.loads(json.dumps(whole.to_json()))) == whole
    older = whole.to_json()
    del older["block_size"]
    for plain in older["nodes"]:
        del plain["item"]
    assert Picture.of_json(older) == replace(whole, block_size=None)
    unscored = PictureNode("0", None, "prompt", "", 1, score=float("-inf"), logprob=float("nan"))
    again = Picture.of_json(Picture("t", (), (unscored,)).to_json())
    assert (again.nodes[0].score, again.nodes[0].logprob) == (None, None)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "something else"},
        {"steps": [1]},
        {"nodes": [{"name": "0"}]},
        {"nodes": 3},
        {"title": None},
        {"blocks": {"size": "a"}},
        {"block_size": 0},
        {"blocks": {"size": 1, "refs": [[1]], "tables": []}},
    ],
)
def test_what_is_no_picture_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="file: is no picture of a tree"):
        Picture.of_json(picture(["a"]).to_json() | change)
    with pytest.raises(InvalidRequestError, match="parents first"):
        Picture("t", (), (PictureNode("0", 0, "prompt", "", 1),))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def show(browser: Browser, folder: Path, what: Picture) -> None:
    path = folder / "tree.html"
    path.write_text(page(what), "ascii")
    browser.events.clear()
    browser.open(path)
    asked = [event["request"]["url"] for event in browser.said("Network.requestWillBeSent")]
    assert asked == [path.as_uri()]
    assert not browser.said("Runtime.exceptionThrown")
    assert not browser.said("Log.entryAdded")


COUNT = "document.querySelectorAll('.node').length"
TEXTS = "[...document.querySelectorAll('.node')].map((box) => box.querySelector('.text').textContent)"


def slide(browser: Browser, step: int) -> None:
    browser.run(f"document.getElementById('step').value = {step}")
    browser.run("document.getElementById('step').dispatchEvent(new Event('input'))")


def test_in_a_browser_hostile_texts_are_shown(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, picture(HOSTILE))
    assert sorted(browser.run(TEXTS)) == sorted(["Once", *(text for text in HOSTILE)])
    assert browser.run("document.title") != "owned"
    assert browser.run("document.querySelectorAll('img, script').length") == 2


def test_in_a_browser_the_slider_goes_over_steps(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, picture(["a", "b", "c"]))
    assert browser.run(COUNT) == 4
    assert browser.run("document.querySelectorAll('.node.gone').length") == 1
    slide(browser, 1)
    assert browser.run(COUNT) == 2
    assert browser.run("document.querySelectorAll('.node.growing').length") == 1
    assert browser.run("document.getElementById('label').textContent") == "step 1"
    assert "2 nodes, 0 pruned, 1 growing" in browser.run("document.getElementById('counts').textContent")
    slide(browser, 4)
    browser.run("document.getElementById('pruned').click()")
    assert browser.run(COUNT) == 3
    browser.run("document.querySelector('.fold').click()")
    assert browser.run(COUNT) == 1
    browser.run("document.querySelector('.node').click()")
    assert "Once" in browser.run("document.getElementById('details').textContent")


def test_in_a_browser_a_thousand_nodes(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, chain(1000))
    assert "1,000 nodes" in browser.run("document.getElementById('counts').textContent")
    assert 0 < browser.run(COUNT) < 200  # those in sight
    browser.run("document.getElementById('fit').click()")
    assert browser.run(COUNT) == 1000
    slide(browser, 9)
    assert browser.run(COUNT) == 10


def test_in_a_browser_blocks_have_the_colour_of_their_references(browser: Browser, tmp_path: Path) -> None:
    blocks = Blocks(4, ((0, 7, 1), (1, 7, 3), (2, 7, 0)), ((0, 0, (7, 8)), (2, 0, (8,))))
    node = PictureNode("0", None, "generated", "abc", 3, 0, None, pieces=("a", "b", "c"), grown=(0, 1, 2))
    show(browser, tmp_path, Picture("b", ("0", "1", "2"), (node,), blocks=blocks))
    refs = "[...document.querySelectorAll('.blocks i')].map((cell) => cell.dataset.refs).join()"
    seen = []
    for step in (0, 1, 2, 0):
        slide(browser, step)
        seen.append((browser.run(TEXTS)[0], browser.run(refs)))
    assert seen == [("a", "1,0"), ("ab", "3,0"), ("abc", "0"), ("a", "1,0")]


def test_in_a_browser_blocks_that_were_not_recorded_are_those_of_the_paths(
    browser: Browser, tmp_path: Path
) -> None:
    """Blocks of 4: the prompt's 5 tokens are one and a beginning, of which a child has a copy."""
    nodes = (
        PictureNode("0", None, "prompt", "", 5),
        PictureNode("1", 0, "generated", "", 5, 1, 2),
        PictureNode("2", 0, "generated", "", 3, 1, 2, 4),
        PictureNode("3", 1, "given", "", 0, 3, 3),
        PictureNode("4", 1, "generated", "", 4, 3, 5),
    )
    show(browser, tmp_path, Picture("b", tuple("012345"), nodes, block_size=4))
    boxes = "[...document.querySelectorAll('.node')]"
    refs = f"{boxes}.map((box) => [...box.querySelectorAll('i')].map((cell) => cell.dataset.refs).join())"
    seen = {}
    for step in (0, 1, 2, 3, 4, 5, 2):
        slide(browser, step)
        names = browser.run(f"{boxes}.map((box) => box.dataset.node)")
        seen[step] = dict(zip(names, browser.run(refs), strict=True))
    assert seen[0] == {"0": "1,1"}
    assert seen[1] == {"0": "3,3", "1": "", "2": ""}  # they grow from where it ends
    assert seen[2] == {"0": "3,1", "1": "1,1", "2": "1"}
    assert seen[3] == {"0": "5,1", "1": "3,3", "2": "1", "3": "", "4": ""}
    assert seen[4] == {"0": "4,1", "1": "3,3", "2": "0", "3": "", "4": ""}
    assert seen[5] == {"0": "4,1", "1": "3,2", "2": "0", "3": "", "4": "1,1"}
    assert "5 blocks of 4, 1 shared" in browser.run("document.getElementById('counts').textContent")
    assert "references of a block" in browser.run("document.getElementById('legend').textContent")
