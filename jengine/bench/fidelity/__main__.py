"""Random small configs of every family against transformers: how far log-probabilities are off.

    python -m jengine.bench.fidelity [--family F ...] [--draws N] [--seed S]
                                     [--implementation I ...] [--seconds S] [--output-json FILE]

The first draw has the number `--seed`, the next ones follow. Of several implementations, each has
other draws. A draw that is too far off is told in a line that repeats it. Needs the
extra `test`: torch, transformers and hypothesis.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from jengine.bench.fidelity.flags import parser
from jengine.bench.fidelity.implementations import environment_of

NEEDED = ("torch", "transformers", "hypothesis")
# Programs run a few times each: a quick compile is worth more than a quick program.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


def main(words: Sequence[str] | None = None) -> None:
    """Become the program that searches, in the environment that the implementation needs."""
    words = sys.argv[1:] if words is None else words
    flags = parser((__doc__ or "").splitlines()[0])
    try:
        needed = environment_of(flags.parse_args(words).implementation)
    except ValueError as problem:
        flags.error(str(problem))
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        flags.error(f"{', '.join(missing)} cannot be imported: pip install 'jengine[test]'")
    program = [sys.executable, "-m", "jengine.bench.fidelity.search", *words]
    environment = {**os.environ, **QUICK, **needed}
    os.execve(sys.executable, program, environment)  # noqa: S606


if __name__ == "__main__":
    main()
