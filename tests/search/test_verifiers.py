"""Verifiers: callables of all kinds, yes or no by a model, reward models of transformers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from forkdecode import LLM, AsyncLLM, CapacityError, InvalidRequestError
from forkdecode.calls.tree import AsyncTree, Tree
from forkdecode.search import (
    BestOfN,
    Branch,
    Budget,
    ClassifierVerifier,
    Decoding,
    StepBeam,
    YesNoJudge,
    YesNoScorer,
    each,
    run,
    run_async,
)
from forkdecode.search.verifiers import check_scores
from forkdecode.tree.local import AsyncLocalLink
from forkdecode.tree_types import OpenTree, TreeLimits
from tests.search.world import AsyncWorld, World, reward, rewards
from tests.tiny_model import byte_tokenizer, llama_config, save_tiny_llama

DECODING = Decoding(step=("e", " "), step_tokens=6, max_tokens=18)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=512))


@pytest.fixture(scope="module")
def llm(folder: str) -> Iterator[LLM]:
    with LLM(folder, num_blocks=512, threads=1) as llm:
        yield llm


async def slow(branch: Branch) -> float:
    await asyncio.sleep(0)
    return reward(branch)


async def slow_batch(branches: Sequence[Branch]) -> list[float]:
    await asyncio.sleep(0)
    return rewards(branches)


class Callable:
    """An object that is called, with a coroutine."""

    async def __call__(self, branch: Branch) -> float:
        return await slow(branch)


@pytest.mark.parametrize("verifier", [rewards, slow_batch, each(reward), each(slow), each(Callable())])
def test_callables_of_all_kinds_say_the_same(verifier: object) -> None:
    async def elsewhere() -> list[Branch]:
        async with await AsyncTree.create(AsyncWorld(World(8))) as tree:
            return list((await run_async(tree, BestOfN(6), verifier)).finished)  # type: ignore[arg-type]

    with Tree(World(8)) as tree:
        expected = run(tree, BestOfN(6), rewards).finished
    with Tree(World(8)) as tree:
        assert run(tree, BestOfN(6), verifier).finished == expected  # type: ignore[arg-type]
    assert tuple(asyncio.run(elsewhere())) == expected
    assert [b.score for b in expected] == sorted(map(reward, expected), reverse=True)


@pytest.mark.parametrize("no", [" no", None])
@pytest.mark.parametrize("output", ["probability", "logprob"])
def test_yes_or_no_is_what_the_model_says_after_the_branch(llm: LLM, no: str | None, output: str) -> None:
    question = " good?"
    scorer = YesNoScorer(question, no=no, output=output)  # type: ignore[arg-type]
    words = [" yes"] + [no] * (no is not None)
    with llm.tree("hello", seed=1) as tree:
        result = run(tree, StepBeam(2, 2), scorer, budget=Budget(nodes=8), decoding=DECODING, prune=False)
        branches = [b for b in (*result.finished, *result.unfinished) if b.is_scored]
        assert len(branches) >= 4
        ids = llm.tokenizer(question, add_special_tokens=False).input_ids  # type: ignore[misc]
        for branch in branches:
            path = [*tree.node(branch.id).path_token_ids, *ids]
            lps = [c.cumulative_logprob for c in llm.score(path, words).continuations]  # type: ignore[arg-type]
            expected = lps[0] if no is None else lps[0] - math.log(sum(map(math.exp, lps)))
            expected = expected if output == "logprob" else math.exp(expected)
            assert branch.score == pytest.approx(expected, abs=1e-5)
        assert len(tree.nodes) == 1 + result.spent.nodes  # the questions are gone


def test_questions_are_gone_when_one_of_them_finds_no_room(llm: LLM) -> None:
    async def elsewhere() -> None:
        async with await AsyncTree.create(await AsyncLocalLink.open(opener)) as tree:
            nodes = await tree.fork(tree.root, 2)
            with pytest.raises(CapacityError, match="max_nodes"):
                await YesNoScorer().verify_async(tree, (), nodes)
            assert len(tree.nodes) == 3

    limits = TreeLimits(max_nodes=4)
    opener = llm._session.opener(OpenTree("hello", False, 1, ""), limits)
    with llm.tree("hello", seed=1, limits=limits) as tree:
        nodes = tree.fork(tree.root, 2)
        with pytest.raises(CapacityError, match="max_nodes"):
            YesNoScorer().verify(tree, (), nodes)
        assert len(tree.nodes) == 3
    asyncio.run(elsewhere())


def test_yes_or_no_in_an_event_loop_and_by_another_model(llm: LLM, folder: str) -> None:
    async def elsewhere() -> list[list[Branch]]:
        found = []
        async with AsyncLLM(folder, num_blocks=512, threads=1) as other:
            for verifier in (YesNoScorer(" ok?"), YesNoJudge(other, "Is {completion} fine?")):
                async with await other.tree("hello", seed=1) as tree:
                    result = await run_async(
                        tree, StepBeam(2, 2), verifier, budget=Budget(nodes=12), decoding=DECODING
                    )
                    found.append([*result.finished, *result.unfinished])
        return found

    expected = []
    for verifier in (YesNoScorer(" ok?"), YesNoJudge(llm, "Is {completion} fine?")):
        with llm.tree("hello", seed=1) as tree:
            result = run(tree, StepBeam(2, 2), verifier, budget=Budget(nodes=12), decoding=DECODING)
            expected.append([*result.finished, *result.unfinished])
    for branch in expected[1]:
        lps = [
            c.cumulative_logprob
            for c in llm.score(f"Is {branch.completion} fine?", [" yes", " no"]).continuations
        ]
        assert branch.score == pytest.approx(math.exp(lps[0]) / sum(map(math.exp, lps)), abs=1e-6)
    assert [[b.id for b in found] for found in asyncio.run(elsewhere())] == [
        [b.id for b in found] for found in expected
    ]


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folders = {}
    for labels in (1, 3):
        torch.manual_seed(labels)
        tokenizer = byte_tokenizer()
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=32, num_labels=labels, initializer_range=0.5,
            pad_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        folders[labels] = tmp_path_factory.mktemp(f"reward{labels}")
        LlamaForSequenceClassification(config).save_pretrained(folders[labels])
        tokenizer.save_pretrained(folders[labels])
    return folders


def branches_of(*texts: str) -> list[Branch]:
    return [Branch(i, 0, 1, "finished", completion=text) for i, text in enumerate(texts, 1)]


def test_a_reward_model_of_transformers(reward_model: dict[int, Path]) -> None:
    found = branches_of("hello world", "no", "a rather long text that does not fit into thirty-two positions")
    one = ClassifierVerifier(str(reward_model[1]), template="Q: {completion}", batch_size=2)
    model = LlamaForSequenceClassification.from_pretrained(reward_model[1]).eval()
    tokenizer = byte_tokenizer()
    expected = []
    for branch in found:
        ids = tokenizer(f"Q: {branch.completion}", add_special_tokens=True).input_ids[-32:]
        with torch.inference_mode():
            expected.append(float(model(torch.tensor([ids])).logits[0, 0]))
    assert one(found) == pytest.approx(expected, abs=1e-4)
    loaded = ClassifierVerifier(model, tokenizer=tokenizer, template="Q: {completion}", sigmoid=True)
    assert loaded(found) == pytest.approx([1 / (1 + math.exp(-logit)) for logit in expected], abs=1e-4)
    shares = [ClassifierVerifier(reward_model[3], label=i)(found) for i in range(3)]
    assert [sum(share) for share in zip(*shares, strict=True)] == pytest.approx([1.0] * 3, abs=1e-4)
    with pytest.raises(InvalidRequestError, match="label: 3 of 3"):
        ClassifierVerifier(reward_model[3], label=3)(found)
    with Tree(World(8)) as tree:
        result = run(tree, BestOfN(4), one)
    assert [b.score for b in result.finished] == sorted(
        (b.score or 0.0 for b in result.finished), reverse=True
    )


def test_a_model_that_was_never_trained_to_classify_is_refused(folder: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"model: .* lack score\.weight") as caught:
        ClassifierVerifier(folder)(branches_of("hello"))
    assert caught.value.field == "model"


def test_a_reward_model_without_a_tokenizer_needs_the_caller_s(tmp_path: Path) -> None:
    LlamaForCausalLM(llama_config()).save_pretrained(tmp_path)
    with pytest.raises(InvalidRequestError, match="tokenizer: is missing"):
        ClassifierVerifier(tmp_path)(branches_of("hello"))


@pytest.mark.parametrize(
    "scores", [None, [1.0], ["x", 1.0], [1.0, math.nan], [10**400, 1.0], [torch.zeros(2), 1.0]]
)
def test_scores_that_are_none_are_the_verifier_s_fault(scores: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"verifier: returned .*; allowed: one finite number"):
        check_scores(scores, 2)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("template", lambda: ClassifierVerifier("m", template="x")),
        ("tokenizer", lambda: ClassifierVerifier(object())),
        ("yes", lambda: YesNoScorer(yes="")),
        ("output", lambda: YesNoScorer(output="odds")),  # type: ignore[arg-type]
        ("llm", lambda: YesNoJudge(None, "{completion}")),
        ("template", lambda: YesNoJudge(LLM, "x")),
    ],
)
def test_wrong_settings_are_refused_by_name(field: str, make: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.field == field
