"""`python -m tests.matrix` shows the matrix of options and strategies, `--write` puts it into the README.

tests/matrix/test_cells.py runs every cell of it.
"""

from __future__ import annotations

import sys

from tests.matrix.table import README, render, written

if "--write" in sys.argv[1:]:
    README.write_text(written(README.read_text()))
else:
    sys.stdout.write(render() + "\n")
