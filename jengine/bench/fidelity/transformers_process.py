"""transformers and torch in a child process, so that torch is never imported here.

In: settings, folders and token ids. Out: config.json, model folders, log-probabilities.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jengine.bench.fidelity.child_process import ChildProcess, EndsWithBlock
from jengine.errors import JengineError

PROGRAM = Path(__file__).with_name("reference.py")


class ConfigRefused(JengineError, ValueError):
    """transformers rejected the config."""


class Routed(NamedTuple):
    """A forward pass of a model with experts."""

    rows: np.ndarray  # log-probabilities, [sequences, tokens, vocab]
    experts: np.ndarray  # that ran, [sequences, layers, tokens, chosen]
    replaced: int  # tokens and layers whose routers would have chosen others


class Transformers(EndsWithBlock):
    """The child process, with a folder for its outputs."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._child = ChildProcess([sys.executable, str(PROGRAM)])

    def kill(self) -> None:
        self._child.kill()

    def close(self) -> None:
        self._child.close()
        self._folder.cleanup()

    def classes(self, mapping: str) -> list[str]:
        """The classes of one of transformers' mappings, by its name there."""
        return self._ask("classes", mapping=mapping)

    def config(self, architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The config.json that transformers writes for these settings."""
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
        """Log-probabilities after each token of sequences of one length, computed in this dtype,
        optionally with an int8 KV cache."""
        out = Path(self._folder.name) / "scores.npy"
        self._ask(
            "score", folder=str(folder), tokens=tokens, dtype=dtype, cache=cache, out=str(out)
        )
        return np.load(out)

    def score_routed(
        self, folder: Path, tokens: Sequence[Sequence[int]], *, num_experts: int, chosen: int,
        experts: np.ndarray | None = None, dtype: str = "float32", cache: str = "none",
    ) -> Routed:  # fmt: skip
        """`score`, with the experts that routers chose or, if given, were made to choose."""
        given, out = (Path(self._folder.name) / name for name in ("experts.npy", "routed.npz"))
        if experts is not None:
            np.save(given, experts.astype(np.int64))
        answer = self._ask(
            "score_routed", folder=str(folder), tokens=tokens, dtype=dtype, cache=cache,
            num_experts=num_experts, chosen=chosen, out=str(out),
            experts=None if experts is None else str(given),
        )  # fmt: skip
        rows, ran = arrays(out, 2)
        return Routed(rows, ran, answer["replaced"])

    def score_conditional(
        self, folder: Path, architecture: str, reads: str, sources: Sequence[Sequence[np.ndarray]],
        tokens: Sequence[Sequence[int]], *, dtype: str = "float32", cache: str = "none",
    ) -> list[np.ndarray]:  # fmt: skip
        """Log-probabilities after each token of each sequence. `sources`: per sequence its encoder
        inputs, which are token ids, audio samples, or the pixels of any number of pictures."""
        given, out = (Path(self._folder.name) / name for name in ("sources.npz", "scores.npz"))
        np.savez(given, *chain.from_iterable(sources))
        self._ask(
            "score_conditional", folder=str(folder), architecture=architecture, reads=reads,
            sources=str(given), counts=list(map(len, sources)), tokens=tokens, dtype=dtype,
            cache=cache, out=str(out),
        )  # fmt: skip
        return arrays(out, len(tokens))

    def pool(
        self, folder: Path, architecture: str, tokens: Sequence[Sequence[int]], *,
        dtype: str = "float32",
    ) -> list[np.ndarray]:  # fmt: skip
        """Output of a non-generative class per sequence: hidden states or class scores."""
        out = Path(self._folder.name) / "pooled.npz"
        self._ask(
            "pool", folder=str(folder), architecture=architecture, tokens=tokens, dtype=dtype,
            out=str(out),
        )  # fmt: skip
        return arrays(out, len(tokens))

    def _ask(self, operation: str, **job: Any) -> Any:
        answer = self._child.ask({"operation": operation, **job})
        if "error" in answer:
            raise ConfigRefused(answer["error"])
        return answer["answer"]


def arrays(file: Path, count: int) -> list[np.ndarray]:
    """Read the unnamed arrays of an .npz file."""
    with np.load(file) as found:
        return [found[f"arr_{place}"] for place in range(count)]
