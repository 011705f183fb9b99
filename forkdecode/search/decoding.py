"""How the branches of a search are decoded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from forkdecode.checks import check_int, check_texts, keep, shown
from forkdecode.errors import invalid
from forkdecode.types import MAX_STOP_BYTES, Options, Sample


@dataclass(frozen=True, slots=True)
class Decoding:
    """sample: how tokens are drawn; its n is the policy's, its seed the tree's. step: texts that end a step
    and stay in it. step_tokens: the most tokens of a step. max_tokens: the most tokens of a path after the
    root, not counting given texts; a path ends earlier at the model's last position. options: all others;
    max_tokens there has no effect, and forced_prefix begins each answer, not each step: it is generated after
    the root and after each given text. A stop text of the options, a stop token or EOS finishes a branch."""

    sample: Sample = field(default_factory=Sample)
    step: tuple[str, ...] = ("\n\n",)
    step_tokens: int = 64
    max_tokens: int = 512
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        keep(self, "step", check_texts, MAX_STOP_BYTES)
        keep(self, "step_tokens", check_int, 1)
        keep(self, "max_tokens", check_int, 1)
        if not isinstance(self.sample, Sample):
            raise invalid("sample", f"{shown(self.sample)} is no Sample", "Sample(...)")
        if self.sample.seed is not None:
            raise invalid("sample", "has a seed, which every branch would share", "the tree's seed")
        if not isinstance(self.options, Options):
            raise invalid("options", f"{shown(self.options)} is not an Options object", "forkdecode.Options")

    def longest(self, path_tokens: int, *, whole: bool) -> int:
        """Tokens that a child of a path of so many can have: 0 if it can have none."""
        left = self.max_tokens - path_tokens
        return max(0, left if whole else min(left, self.step_tokens))

    def limited(self, tokens: int, *, begins: bool = True) -> Options:
        """The options of children of at most so many tokens. begins: whether an answer begins with them."""
        options = self.options if begins else replace(self.options, forced_prefix=())
        return replace(options, max_tokens=tokens, min_tokens=min(options.min_tokens, tokens))
