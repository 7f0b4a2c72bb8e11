"""transformers in a child process.

In: settings, folders and token ids. Out: config.json, model folders, log-probabilities. torch is
never imported here.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from jengine.bench.fidelity.child_process import ChildProcess
from jengine.errors import JengineError

PROGRAM = Path(__file__).with_name("reference.py")


class Refused(JengineError, ValueError):
    """What transformers says of a config that it does not take."""


class Transformers:
    """The child process; it ends with the block that opened it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._child = ChildProcess([sys.executable, str(PROGRAM)])

    def __enter__(self) -> Transformers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._child.close()
        self._folder.cleanup()

    def config(self, architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The config.json that it makes of some settings."""
        return self._ask("config", architecture=architecture, settings=settings)

    def write(
        self, folder: Path, architecture: str, settings: Mapping[str, Any], *, seed: int,
        dtype: str, unscaled: bool, largest_code: int = 0, adapter_rank: int = 0,
    ) -> None:  # fmt: skip
        """Write a model of random weights. unscaled: its attention has no factor for scores.

        With a rank, an adapter is in the folder's `adapter`, and in `merged` the model with it.
        """
        self._ask(
            "write", folder=str(folder), architecture=architecture, settings=settings, seed=seed,
            dtype=dtype, unscaled=unscaled, largest_code=largest_code, adapter_rank=adapter_rank,
        )  # fmt: skip

    def score(
        self, folder: Path, tokens: Sequence[Sequence[int]], *, dtype: str = "float32",
        cache: str = "none",
    ) -> np.ndarray:  # fmt: skip
        """Log-probabilities after each token of sequences of one length, computed in a dtype, and
        from keys and values that a cache rounds."""
        out = Path(self._folder.name) / "scores.npy"
        self._ask(
            "score", folder=str(folder), tokens=tokens, dtype=dtype, cache=cache, out=str(out)
        )
        return np.load(out)

    def pool(
        self, folder: Path, architecture: str, tokens: Sequence[Sequence[int]], *,
        dtype: str = "float32",
    ) -> list[np.ndarray]:  # fmt: skip
        """What a class that writes nothing computes of each sequence: states or scores."""
        out = Path(self._folder.name) / "pooled.npz"
        self._ask(
            "pool", folder=str(folder), architecture=architecture, tokens=tokens, dtype=dtype,
            out=str(out),
        )  # fmt: skip
        with np.load(out) as found:
            return [found[f"arr_{place}"] for place in range(len(tokens))]

    def _ask(self, operation: str, **job: Any) -> dict[str, Any]:
        answer = self._child.ask({"operation": operation, **job})
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["answer"]
