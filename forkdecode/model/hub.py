"""Looking for a model on the hub, before transformers does: it tries for a minute where there is none."""

from __future__ import annotations

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError

from forkdecode.config import DEFAULT_MODEL
from forkdecode.errors import ModelLoadError
from forkdecode.model.support import one_line

_CONFIG = "config.json"


def check_reached(name: str) -> None:
    """Raises ModelLoadError if the model is not in the cache and one attempt does not reach the hub."""
    try:
        if isinstance(try_to_load_from_cache(name, _CONFIG), str):
            return
        get_hf_file_metadata(hf_hub_url(name, _CONFIG))
    except (HfHubHTTPError, ValueError):
        return  # what the hub says of the name, or what is wrong with it, transformers tells better
    except Exception as error:  # of whatever carries requests
        raise ModelLoadError(
            f"model {name!r} can't be opened: there is no folder of that name here, and the hub can't be "
            f"reached: {one_line(error)}; allowed: {DEFAULT_MODEL}, a folder, a .gguf file, or a hub id",
            field="model",
        ) from error
