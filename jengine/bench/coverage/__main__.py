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
from collections.abc import Sequence
from pathlib import Path

from jengine.bench.coverage.kept import Kept
from jengine.bench.coverage.walk import walk


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
    kept = Kept(args.output_json, words)
    for line in walk(kept, args.only, args.class_seconds):
        print(line, flush=True)
    print(", ".join(f"{name}: {count}" for name, count in kept.counts().items()))
    return int(kept.has_differences)


if __name__ == "__main__":
    raise SystemExit(main())
