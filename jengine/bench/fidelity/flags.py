"""Command line flags."""

from __future__ import annotations

import argparse
from pathlib import Path

from jengine.bench.fidelity.conditional import CONDITIONAL
from jengine.bench.fidelity.encoders import ENCODERS
from jengine.bench.fidelity.families import FAMILIES
from jengine.bench.fidelity.generic import GENERIC
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS

SEARCHED = (*FAMILIES, *ENCODERS, *CONDITIONAL, *GENERIC)


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m jengine.bench.fidelity", description=description)
    made.add_argument("--family", nargs="+", choices=SEARCHED, metavar="F", help="default: all")
    made.add_argument(
        "--draws", type=int, default=10, metavar="N", help="of each family on each implementation"
    )
    made.add_argument("--seed", type=int, default=0, metavar="S", help="number of the first draw")
    made.add_argument(
        "--implementation", nargs="+", choices=IMPLEMENTATIONS, default=["cpu"], metavar="I",
        help=f"{', '.join(IMPLEMENTATIONS)}; every draw is on each",
    )  # fmt: skip
    made.add_argument("--seconds", type=float, help="begin no draw after so many")
    made.add_argument(
        "--draw-seconds", type=float, default=300.0, metavar="S",
        help="a draw that takes longer is ended, and has failed",
    )  # fmt: skip
    made.add_argument(
        "--output-json", type=Path, metavar="FILE",
        help="kept after every draw; what is there is not drawn again, unless it failed",
    )  # fmt: skip
    return made
