"""Worker process: compares one class of transformers after the other.

In: per line of stdin, JSON with an architecture; an empty object is a ping. Out: one line each.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jengine.bench.fidelity.answers import compared
from jengine.bench.fidelity.check import answered, prompts_of
from jengine.bench.fidelity.child_process import ChildEnded
from jengine.bench.fidelity.found import DrawError
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS, Implementation
from jengine.bench.fidelity.tiny import tiny, varied
from jengine.bench.fidelity.transformers_process import ConfigRefused, Transformers
from jengine.errors import CheckpointError, JengineError
from jengine.models.architectures import FAMILIES, REFUSED
from jengine.models.importing.imported import ImportedFamily
from jengine.models.importing.proven import ELSEWHERE
from jengine.weights.folder import read_config_file, shapes_of

CPU = IMPLEMENTATIONS["cpu"]
GENERIC = CPU._replace(settings={**CPU.settings, "model_impl": "generic"})


def main() -> None:
    """Answer requests until stdin closes."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # Whatever libraries print is no answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with Transformers() as theirs:
        for line in sys.stdin:
            job = json.loads(line)
            answers.write(json.dumps(answer(theirs, job) if job else {}) + "\n")
            answers.flush()
            jax.clear_caches()


def answer(theirs: Transformers, job: dict[str, Any]) -> dict[str, Any]:
    """The result of a class: `outcome`, and the error of log-probabilities or a reason."""
    architecture = job["architecture"]
    by_name = architecture in FAMILIES or architecture in REFUSED
    by, how = ("name", CPU) if by_name else ("generic", GENERIC)
    try:
        return {"by": by, **outcome(theirs, architecture, how)}
    except ChildEnded:
        raise  # the next class needs another process, too
    except ConfigRefused as refusal:
        return {"outcome": "no tiny model", "reason": str(refusal)}
    except JengineError as refusal:
        return {"outcome": "refused", "reason": str(refusal)}
    except Exception as fault:  # noqa: BLE001 - a class that breaks is a finding, and not the last
        return {"outcome": "broke", "by": by, "reason": f"{type(fault).__name__}: {fault}"}


def outcome(theirs: Transformers, architecture: str, how: Implementation) -> dict[str, Any]:
    """Compare tiny models of the class with transformers. Raises JengineError where it cannot."""
    defaults = theirs.config(architecture, {})
    found, needs = compare(theirs, architecture, tiny(architecture, defaults), how)
    said: dict[str, Any] = {"error": found.error}
    if how is GENERIC:
        said["needs"] = needs
        try:
            again, _ = compare(theirs, architecture, varied(architecture, defaults), how)
            found = max(found, again, key=lambda one: one.error / one.limit)
            said["error"] = found.error
        except ChildEnded:
            raise
        except JengineError as refusal:  # the defaults are what is counted
            said["varied"] = str(refusal)
    said["outcome"] = "equal" if found.passed else "different"
    return {**said, "reason": found.note} if found.note else said


def compare(
    theirs: Transformers, architecture: str, settings: Mapping[str, Any], how: Implementation
) -> tuple[DrawError, list[str]]:
    """The error of one model, and the keys that the generic reader needs of its config.json."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs.write(folder, architecture, settings, seed=0, dtype="float32", unscaled=False)
        prompts = prompts_of(0)
        answers = answered(folder, prompts, how)
        texts = [prompt + one.tokens for prompt, one in zip(prompts, answers, strict=True)]
        found = compared(partial(theirs.score, folder, texts), answers, how)
        return found, needed(folder) if how is GENERIC else []


def needed(folder: Path) -> list[str]:
    """Keys of config.json without which the generic reader would read another model."""
    hf = read_config_file(folder)
    family = ImportedFamily(hf, shapes_of(folder))
    config = family.read_config(hf)

    def reads_alike(key: str) -> bool:
        try:
            return family.read_config({one: hf[one] for one in hf if one != key}) == config
        except CheckpointError:
            return False

    return [key for key in sorted(hf.keys() - ELSEWHERE) if not reads_alike(key)]


if __name__ == "__main__":
    main()
