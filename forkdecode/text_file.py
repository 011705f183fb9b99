"""Files of UTF-8 as editors leave them: some begin with a byte order mark, which is no part of the text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

UTF8 = "utf-8-sig"
"""To read a whole file with: UTF-8, without its mark if it has one."""


def without_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file, the first one without a mark."""
    rest = iter(lines)
    for first in rest:
        yield first.removeprefix(codecs.BOM_UTF8)
        break
    yield from rest
