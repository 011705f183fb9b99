"""The tokenizer that comes with a model, if one does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forkdecode.text.special_tokens import special_ids

_JSON = "tokenizer.json"
_FILES = (
    _JSON, "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "tekken.json", "added_tokens.json", "special_tokens_map.json",
)  # fmt: skip
"""What a folder has one of that has a tokenizer."""


def open_tokenizer(name: str, *, local: bool) -> Any | None:
    """transformers' tokenizer of a folder or hub id; None where it has no files of one.

    Of some kinds of models transformers makes one out of nothing then, which knows no text. Raises what
    transformers raises, and ValueError for files without a vocabulary.
    """
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    try:
        found = load(name, trust_remote_code=False, local_files_only=local)
        if not isinstance(getattr(found, "added_tokens_decoder", None), Mapping) and _JSON in _files(name):
            found = _by_tokenizer_json(name, local=local)
    except Exception:
        if _has_files(name):
            raise
        return None
    if _has_text(found):
        return found
    if _has_files(name):
        raise ValueError("its tokenizer has special tokens alone: tokenizer.json or the like is missing")
    return None


def _by_tokenizer_json(name: str, *, local: bool) -> Any:
    """The tokenizer of a model of Mistral's by its tokenizer.json. transformers prefers mistral-common, which
    has no chat template, where it is installed; without the correction those files split words otherwise."""
    from transformers import PreTrainedTokenizerFast

    load: Any = PreTrainedTokenizerFast.from_pretrained
    return load(name, trust_remote_code=False, local_files_only=local, fix_mistral_regex=True)


def open_gguf_tokenizer(path: Path) -> Any:
    """transformers' tokenizer of a GGUF file, which has to hold one. Raises what transformers raises."""
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    return load(str(path.parent), gguf_file=path.name, trust_remote_code=False, local_files_only=True)


def _has_text(tokenizer: Any) -> bool:
    """Whether any of its tokens is not special."""
    special = special_ids(tokenizer)
    return any(i not in special for i in tokenizer.get_vocab().values())


def _has_files(name: str) -> bool:
    return not _files(name).isdisjoint(_FILES)


def _files(name: str) -> set[str]:
    folder = Path(name)
    if folder.is_dir():
        return {file for file in _FILES if (folder / file).is_file()}
    from huggingface_hub import list_repo_files

    return set(list_repo_files(name))
