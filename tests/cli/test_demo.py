"""`forkdecode demo` on a tiny model."""

from __future__ import annotations

import re

from tests.cli.conftest import Cli


def test_four_strategies_in_one_batch_and_what_sharing_saves(cli: Cli, model_1k: str) -> None:
    ran = cli("demo", "--model", model_1k, "--max-tokens", "6", "--num-blocks", "400")
    assert ran.code == 0
    for title, count in (("greedy", 1), ("8 samples", 8), ("best 3 of 8", 3), ("beam of 4", 4)):
        part = ran.out.split(f"{title}: ")[1].split("\n\n")[0]
        assert len(re.findall(r"^ +\d+ +-?\d+\.\d{3}", part, re.MULTILINE)) == count
    rows = {
        m[1]: m
        for m in re.finditer(
            r"^ *(8 samples|best 3 of 8|beam of 4|batch) +(\d+) +(\d+) +([\d.]+)%", ran.out, re.M
        )
    }
    assert set(rows) == {"8 samples", "best 3 of 8", "beam of 4", "batch"}
    for row in rows.values():
        assert int(row[3]) < int(row[2])
        assert float(row[4]) > 40  # long prompts, short answers
    assert "tokens/s" in ran.out


def test_the_same_seed_prints_the_same_texts(cli: Cli, model_1k: str) -> None:
    texts = [
        cli("demo", "--model", model_1k, "--max-tokens", "5", "--seed", seed).out.split("KV blocks")[0]
        for seed in ("1", "1", "2")
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
