"""`python -m tests.matrix` shows the matrix of options and strategies, `--write` puts it in docs/options.md.

tests/matrix/test_cells.py runs every cell of it.
"""

from __future__ import annotations

import sys

from tests.matrix.table import PAGE, render, written

if "--write" in sys.argv[1:]:
    PAGE.write_text(written(PAGE.read_text()))
else:
    sys.stdout.write(render() + "\n")
