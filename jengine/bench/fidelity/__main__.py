"""Differential test: random small configs of every model family against transformers.

    python -m jengine.bench.fidelity [--family F ...] [--draws N] [--seed S]
                                     [--implementation I ...] [--seconds S] [--draw-seconds S]
                                     [--output-json FILE]

The first draw has the number `--seed`, the next ones follow. A draw that fails is told in a line
that repeats it. With a file, every draw is kept when it is done: a later run draws what failed
again, and then the numbers that were not drawn yet. Needs the extra `test`: torch, transformers and
hypothesis.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Sequence

from jengine.bench.fidelity.flags import parser
from jengine.bench.fidelity.search import search
from jengine.errors import JengineError

NEEDED = ("torch", "transformers", "hypothesis")


def main(words: Sequence[str] | None = None) -> int:
    """Run the search; returns the exit status."""
    words = sys.argv[1:] if words is None else words
    flags = parser((__doc__ or "").splitlines()[0])
    args = flags.parse_args(words)
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        flags.error(f"{', '.join(missing)} cannot be imported: pip install 'jengine[test]'")
    # The worker ends with this process.
    signal.signal(signal.SIGTERM, lambda *given: sys.exit(128 + signal.SIGTERM))
    try:
        return search(args, words)
    except JengineError as problem:
        flags.error(str(problem))


if __name__ == "__main__":
    raise SystemExit(main())
