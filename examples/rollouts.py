"""Rounds of reinforcement learning: samples of a policy, a step of training, new weights for the engine."""

import sys

import torch
from transformers import AutoModelForCausalLM

from forkdecode import LLM, DecodeResult, Sample
from forkdecode.model.default_model import SMOLLM2, ensure

PROMPT = "My favourite place is"
folder = sys.argv[1] if len(sys.argv) > 1 else str(ensure(SMOLLM2))


def learn(result: DecodeResult) -> tuple[float, float]:
    """A step of REINFORCE towards texts with many an "e": the mean reward, and how far log-probabilities of
    engine and policy are apart."""
    rewards = torch.tensor([float(candidate.text.count("e")) for candidate in result.candidates])
    prompt, apart = list(result.prompt_token_ids), 0.0
    for candidate, advantage in zip(result.candidates, rewards - rewards.mean(), strict=True):
        ids = torch.tensor([prompt + list(candidate.token_ids)])
        logprobs = policy(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        total = logprobs.gather(1, ids[0, len(prompt) :, None]).sum()
        (-advantage * total).backward()
        apart = max(apart, abs(candidate.cumulative_logprob - total.item()))
    optimizer.step()
    optimizer.zero_grad()
    return rewards.mean().item(), apart


policy = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)

with LLM(folder, dtype="float32") as llm:
    for number in range(1, 4):
        samples = llm.decode(PROMPT, Sample(n=8, seed=number), max_tokens=16)
        reward, apart = learn(samples)
        llm.update_weights(policy.state_dict())
        print(f"round {number}: mean reward {reward:.2f}; engine and policy are {apart:.3f} apart")
