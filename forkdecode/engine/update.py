"""Other weights for a running engine."""

from __future__ import annotations

import threading
from typing import Any

from forkdecode.engine.core import forget_locals
from forkdecode.engine.thread import EngineThread
from forkdecode.errors import CapacityError, ForkdecodeError, ModelLoadError
from forkdecode.model.device import give_back_host, lacks_memory
from forkdecode.model.new_weights import ModelForm
from forkdecode.model.prepared import Preparing
from forkdecode.model.support import one_line


class WeightUpdates:
    """Exchanges the weights of an engine's model. Safe to call from several threads."""

    def __init__(self, thread: EngineThread, form: ModelForm, prepare: Preparing) -> None:
        self._thread = thread
        self._form = form
        self._prepare = prepare
        self._one_at_a_time = threading.Lock()
        """Those that wait have no memory yet."""

    def update(self, weights: Any) -> None:
        """See LLM.update_weights. The new model is made in the caller's thread, while the engine works."""
        with self._one_at_a_time:
            try:
                self._exchange(weights)
            except Exception as error:
                forget_locals(error)  # who keeps it must not keep the model
                if lacks_memory(error):
                    raise CapacityError(
                        f"kv_memory: {self._form.device} has no room for a second set of weights beside the "
                        "KV cache; allowed: an engine with a smaller one",
                        field="kv_memory",
                    ) from error
                if isinstance(error, ForkdecodeError):
                    raise
                raise ModelLoadError(
                    f"weights: the model can't run with them: {one_line(error)}", field="weights"
                ) from error
            finally:
                give_back_host()

    def _exchange(self, weights: Any) -> None:
        model = self._form.filled(weights)
        self._thread.update(self._prepare(model, self._form.info.vocab_size))
