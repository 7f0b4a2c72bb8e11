"""Which causal classes of transformers run here, and whether they answer as transformers does.

    python -m jengine.bench.coverage [--only CLASS ...] [--output-json FILE] [--class-seconds S]

Every class of transformers' causal mapping gets a tiny model of random weights, which runs in
float32 by its family's name, or else by the generic reader. It is `equal` or `different` in
log-probabilities and eight greedy tokens, `refused` with a reason, or transformers makes no tiny
model of it. What a file holds of other classes is kept. Needs the extra `test`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from jengine.bench.coverage.kept import KeptOutcomes, named
from jengine.bench.fidelity.child_process import ChildEnded
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS
from jengine.bench.fidelity.transformers_process import Transformers
from jengine.bench.fidelity.workers import Workers
from jengine.errors import ConfigError, nearest_name
from jengine.models.registry import body_of, supported


def main(words: Sequence[str] | None = None) -> int:
    """Walk the classes; returns 1 if one is different or broke."""
    words = sys.argv[1:] if words is None else words
    flags = argparse.ArgumentParser(
        prog="python -m jengine.bench.coverage", description=(__doc__ or "").splitlines()[0]
    )
    flags.add_argument("--only", nargs="+", metavar="CLASS", help="default: all")
    flags.add_argument("--output-json", type=Path, metavar="FILE", help="kept after every class")
    flags.add_argument(
        "--class-seconds", type=float, default=180.0, metavar="S",
        help="a class that takes longer is ended",
    )  # fmt: skip
    args = flags.parse_args(words)
    kept = KeptOutcomes(args.output_json, words)
    for line in walk(kept, args.only, args.class_seconds):
        print(line, flush=True)
    print(", ".join(f"{name}: {count}" for name, count in kept.counts().items()))
    return int(kept.has_differences)


# Counted by name alone.
COUNTED = {
    "images and text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "text encoders": "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES",
    "classifiers of text": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
}
PROGRAM = (sys.executable, "-m", "jengine.bench.coverage.worker")


def walk(kept: KeptOutcomes, only: Sequence[str] | None, limit_s: float) -> Iterator[str]:
    """Record the outcome of every class; yields a line for each."""
    with Transformers() as theirs:
        known = theirs.classes("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
        kept.by_name = {kind: known_of(theirs.classes(name)) for kind, name in COUNTED.items()}
    for name in only or ():
        if name not in known:
            raise ConfigError(f"--only {name}: no causal class.{nearest_name(name, known)}")
    environment = IMPLEMENTATIONS["cpu"].environment
    with Workers(limit_s, PROGRAM) as workers:
        for architecture in only or known:
            try:
                answer = workers.ask({"architecture": architecture}, environment)
            except ChildEnded as end:
                answer = {"outcome": "broke", "reason": str(end)}
            kept.add(architecture, answer)
            error = f" {answer['error']:.1e}" if "error" in answer else ""
            yield f"{architecture}: {named(answer)}{error} {answer.get('reason', '')}".rstrip()


def known_of(classes: Sequence[str]) -> dict[str, int]:
    """Count the classes that a family reads by name."""
    return {"known": sum(body_of(name) in supported() for name in classes), "of": len(classes)}


if __name__ == "__main__":
    raise SystemExit(main())
