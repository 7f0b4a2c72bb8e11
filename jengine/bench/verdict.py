"""How a bench that runs servers ends: lines for people, the JSON as the last one, and a status.

In: what was found, and whether something failed. Out: lines, and a file where one is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jengine.bench.machine import client_surroundings
from jengine.bench.surroundings import shown_command


def say(
    module: str,
    words: Sequence[str],
    found: dict[str, Any],
    printed: Callable[[dict[str, Any]], str],
    output_json: Path | None,
) -> int:
    """Print and keep what a module's command has found; the status is 1 if something failed."""
    result = {
        **found,
        "command": shown_command(module, words),
        **client_surroundings(),
    }
    print(printed(result))
    print(json.dumps(result))
    if output_json is not None:
        output_json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return int(bool(result["failed"]))
