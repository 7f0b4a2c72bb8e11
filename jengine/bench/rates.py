"""Items per second of several engines: said to people, printed and kept as JSON.

In: the result of a bench that ran engines in turns on the same work. Out: lines and a file.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def rates_of(what: str, count: int, seconds: Mapping[str, list[float]]) -> dict[str, Any]:
    """Items per second, by the median of the rounds, and how many times as many jengine has."""
    rates = {name: count / statistics.median(found) for name, found in seconds.items()}
    times = {name: rates["jengine"] / rate for name, rate in rates.items()}
    return {"seconds": seconds, f"{what}_per_second": rates, "times": times}


def say(result: dict[str, Any], what: str, output_json: Path | None) -> None:
    """A line for each engine, then JSON."""
    for name, rate in result[f"{what}_per_second"].items():
        ours = f"; jengine has {result['times'][name]:.2f} times as many"
        sys.stdout.write(f"{name}: {rate:.1f} {what}/s{'' if name == 'jengine' else ours}\n")
    text = json.dumps(result)
    sys.stdout.write(text + "\n")
    if output_json is not None:
        output_json.write_text(text, encoding="utf-8")
