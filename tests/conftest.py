"""Settings of every test: one torch thread a worker, reproducible property tests, no network."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

# Before torch is imported. pytest's workers already use the cores, and OpenMP barriers spin.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# The same cases on each run: what fails here fails there. Models differ too much in speed for deadlines.
settings.register_profile(
    "forkdecode",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("forkdecode")


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    """The command line and the server set up logging for a whole process, which is the tests' here."""
    loggers = [logging.getLogger(), logging.getLogger("forkdecode")]
    before = [(each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
        each.handlers[:] = handlers
        each.setLevel(level)
        each.propagate = propagate
