"""Runs torch_reference.py in another process, with a Python that has torch.

In: a model folder and token ids. Out: the folder of a bundle. torch is never imported here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jengine.errors import ConfigError, JengineError

NEEDED = ("torch", "transformers", "safetensors")
SCRIPT = Path(__file__).with_name("torch_reference.py")
# Logits kept per position, of larger vocabularies.
MOST_LOGITS = 4096
LOOK = (
    "import importlib.util, sys; "
    f"sys.exit(' '.join(n for n in {NEEDED!r} if importlib.util.find_spec(n) is None) or 0)"
)
LAST_LINES = 5


class ReferenceFailed(JengineError, RuntimeError):
    """The process with torch did not make the reference."""


@dataclass(frozen=True)
class ReferenceJob:
    """The settings of torch_reference.py."""

    model: str
    dtype: str
    truth_dtype: str
    device: str
    prompts: Sequence[Sequence[int]]
    new_tokens: int
    out: str
    most_logits: int = MOST_LOGITS


def wider(dtype: str) -> str:
    """The dtype that the truth is computed in: one that rounds much less than `dtype`."""
    return "float64" if dtype == "float32" else "float32"


def find_python(given: str | None) -> str:
    """Return a Python that has torch and transformers: `given`, or this one."""
    lacking = lacking_here() if given is None else lacking_there(given)
    if not lacking:
        return sys.executable if given is None else given
    who = "this Python" if given is None else f"{given}"
    raise ConfigError(
        f"{who} has no {', no '.join(lacking)}. Give a Python that has them with --torch-python "
        f"(pip install {' '.join(NEEDED)} in an environment of its own), or compare against a "
        "saved bundle: --against FOLDER."
    )


def lacking_here() -> list[str]:
    """Which packages this Python lacks. They are looked for, not imported."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def lacking_there(python: str) -> list[str]:
    """Which packages another Python lacks."""
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user named
            [python, "-c", LOOK], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ConfigError(f"--torch-python {python!r} cannot be run: {error}.") from error
    if done.returncode == 0:
        return []
    names = done.stderr.split()
    if not names or not set(names) <= set(NEEDED):
        raise ConfigError(f"--torch-python {python!r} is not a Python: {last_lines(done.stderr)}")
    return names


def make_bundle(python: str, job: ReferenceJob) -> None:
    """Run the job, which writes its bundle to `job.out`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(asdict(job)), encoding="utf-8")
        # Safe path: files beside the script must not stand in for modules of other packages.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
        done = subprocess.run(  # noqa: S603 - the program that the user named
            [python, str(SCRIPT), str(file)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
    if done.returncode:
        raise ReferenceFailed(
            f"torch could not make the reference (exit status {done.returncode}): "
            f"{last_lines(done.stderr)}"
        )


def last_lines(text: str) -> str:
    """The end of what a program wrote, on one line."""
    return " / ".join(text.strip().splitlines()[-LAST_LINES:]) or "it wrote nothing."
