"""Texts of nodes: what a detokenizer makes of a whole text, in pieces that lose nothing between them."""

from __future__ import annotations

import codecs
import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from forkdecode.results import FinishReason
from forkdecode.text.detokenizer import Detokenizer
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.tree.text import NodeText, TextState
from forkdecode.types import Greedy, Options
from tests.llm.models import EOS_ID, VOCAB, ids
from tests.tree.driven import MAKER

TOKENS = MAKER.token_bytes
ANY = st.lists(st.one_of(st.integers(0, len(VOCAB) - 1), st.sampled_from(ids("aébцez\n"))), max_size=12)
ENDINGS: st.SearchStrategy[FinishReason] = st.sampled_from(("length", "stop", "eos", "cancelled"))


def _node(
    state: TextState, stop: tuple[str, ...] = (), step: tuple[str, ...] = (), **more: object
) -> NodeText:
    options = Options(stop=stop + step, stop_token_ids=ids("z"), **more)  # type: ignore[arg-type]
    prepared = MAKER.prepare([1], Greedy(), options, {}, chat=False, request_id="a")
    return NodeText(TOKENS, prepared.request, state, step)


@given(pieces=st.lists(ANY, max_size=4))
def test_texts_along_a_path_are_its_text(pieces: list[list[int]]) -> None:
    state, texts = TextState.empty(TOKENS), []
    for piece in pieces:
        node = _node(state, step=("b\n", "é"))
        pushed = [node.push(token) for token in piece]
        rest, _, state = node.finish("length")
        texts += [*pushed, rest]
    path = [token for piece in pieces for token in piece]
    whole = b"".join(map(TOKENS.of, path))
    assert "".join(texts) == codecs.getincrementaldecoder("utf-8")("replace").decode(whole)
    assert state == TextState.empty(TOKENS).read(whole)[1]


@given(tokens=ANY, reason=ENDINGS, include=st.booleans())
def test_a_single_node_is_an_ordinary_text(tokens: list[int], reason: FinishReason, include: bool) -> None:
    stop = ("ab", "b\n", "é")
    tokens = [token for token in tokens if token != EOS_ID] + [EOS_ID] * (reason == "eos")
    node = _node(TextState(b"", False), stop, include_stop=include)
    prepared = MAKER.prepare([1], Greedy(), Options(stop=stop), {}, chat=False, request_id="a")
    whole = Detokenizer(
        TOKENS, stop=prepared.request.automaton, ending_ids={EOS_ID, *ids("z")}, include_stop=include
    )
    for token in tokens:
        assert node.push(token) == whole.push([token])
    text, why, state = node.finish(reason)
    expected = whole.finish(reason)
    assert text == expected or text + "\ufffd" == expected
    assert why == reason
    assert state == TextState(b"", False).read(b"".join(map(TOKENS.of, tokens)))[1]


@given(tokens=ANY.filter(len))
def test_what_ended_a_node_is_told_apart(tokens: list[int]) -> None:
    node = _node(TextState(b"", False), stop=("ab", "e"), step=("\n", "b"))
    shown = "".join(map(node.push, tokens))
    rest, why, _ = node.finish("stop")
    read = b"".join(map(TOKENS.of, tokens))
    last = TOKENS.of(tokens[-1])

    def completed(*texts: bytes) -> list[int]:
        window = [read.find(t, max(0, len(read) - len(last) - len(t) + 1)) for t in texts]
        return [begin for begin in window if begin >= 0]

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    if begins := completed(b"ab", b"e"):
        assert why == "stop"
        assert shown + rest == decoder.decode(read[: min(begins)])
    elif completed(b"\n", b"b"):
        assert why == "step"
        assert shown + rest == decoder.decode(read)
    elif tokens[-1] in ids("z"):
        assert why == "stop"
        assert shown + rest == decoder.decode(read[: len(read) - len(last)])


def test_a_leading_space_is_dropped_once_in_a_path() -> None:
    tokens = TokenBytes.build([b" a", b" b", b""], strips_first_space=True)
    text, state = TextState.empty(tokens).read(b"")
    assert (text, state.strips_space) == ("", True)
    text, state = state.read(b" a")
    assert (text, state.strips_space) == ("a", False)
    assert state.read(b" b")[0] == " b"
    assert dataclasses.replace(state, strips_space=True).read(b"b")[0] == "b"
