"""Reads a bundle: what torch computed, as a folder with bundle.json and tensors.safetensors.

In: a folder. Out: a Reference, after checking that the files belong together and hold what they
say. Must not know engines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from safetensors import SafetensorError, safe_open

from jengine.errors import CheckpointError
from jengine.models.reading.fields import Fields
from jengine.research.runs import Continuation, ModelFacts, PromptRun, Reference

FORMAT, VERSION = "jengine comparison", 1
DESCRIPTION, TENSORS = "bundle.json", "tensors.safetensors"
RUNS = ("truth", "working")
DTYPES = {name: name for name in ("float64", "float32", "bfloat16", "float16")}
REMADE = "Make it again with: jengine compare MODEL --save-bundle FOLDER."


def read_bundle(folder: Path) -> Reference:
    """The reference in a bundle."""
    fields = Fields(read_description(folder), str(folder / DESCRIPTION))
    check_digest(folder / TENSORS, fields)
    arrays = read_arrays(folder / TENSORS)
    prompts = read_prompts(fields)
    reader = BundleReader(folder, fields, arrays)
    return Reference(
        model=read_facts(Fields(fields.values.get("model"), f"{fields.where}: 'model'")),
        dtype=fields.choice("dtype", "", DTYPES),
        truth_dtype=fields.choice("truth_dtype", "", DTYPES),
        prompts=prompts,
        new_tokens=fields.integer("new_tokens", minimum=0),
        columns=[arrays.get(f"{number}.columns") for number in range(len(prompts))],
        truth=reader.run("truth", prompts),
        working=reader.run("working", prompts),
        software={key: str(value) for key, value in _object(fields, "software").items()},
    )


def read_description(folder: Path) -> Mapping[str, object]:
    """bundle.json, if this is a bundle of a version that is understood."""
    file = folder / DESCRIPTION
    if not file.is_file():
        raise CheckpointError(
            f"{folder}: is not a bundle: there is no {DESCRIPTION} in it. Expected a folder that "
            "jengine compare --save-bundle wrote."
        )
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON: {error}. {REMADE}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"{file}: is not the description of a bundle. {REMADE}")
    if found.get("version") != VERSION:
        raise CheckpointError(
            f"{file}: is of version {found.get('version')!r}; this jengine reads version {VERSION}."
            f" {REMADE}"
        )
    return found


def check_digest(file: Path, fields: Fields) -> None:
    """Check that the tensors are those for which the description was written."""
    expected = fields.values.get("sha256")
    try:
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error}. {REMADE}") from error
    if found != expected:
        raise CheckpointError(
            f"{file}: is damaged, or of another bundle: its sha256 is {found[:12]}..., "
            f"{DESCRIPTION} says {str(expected)[:12]}... Copy the folder again. {REMADE}"
        )


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Every tensor of the bundle."""
    try:
        with safe_open(str(file), framework="numpy") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise CheckpointError(f"{file}: is not a safetensors file: {error}. {REMADE}") from error


def read_facts(fields: Fields) -> ModelFacts:
    """Read and check the facts about the bundle's model."""
    architecture = fields.values.get("architecture")
    if not isinstance(architecture, str):
        fields.refuse("architecture", "a name")
    sizes = (fields.integer(key) for key in ("vocab_size", "hidden_size", "num_layers"))
    return ModelFacts(architecture, *sizes)


def read_prompts(fields: Fields) -> list[list[int]]:
    """The token ids of every prompt."""
    found = fields.values.get("prompts")
    if not isinstance(found, list) or not found:
        fields.refuse("prompts", "a list of prompts")
    for one in found:
        if not isinstance(one, list) or not one or not all(type(token) is int for token in one):
            fields.refuse("prompts", "lists of token ids, none of them empty")
    return found


def _object(fields: Fields, key: str) -> Mapping[str, Any]:
    found = fields.values.get(key)
    if not isinstance(found, dict):
        fields.refuse(key, "a JSON object")
    return found


class BundleReader:
    """Puts the runs together from the description and the arrays."""

    def __init__(self, folder: Path, fields: Fields, arrays: Mapping[str, np.ndarray]) -> None:
        self.folder = folder
        self.fields = fields
        self.arrays = arrays
        self.greedy = _object(fields, "greedy")

    def run(self, kind: str, prompts: list[list[int]]) -> list[PromptRun]:
        """One run over all prompts."""
        steps = self.greedy.get(kind)
        if not isinstance(steps, list) or len(steps) != len(prompts):
            self.refuse(f"'greedy' holds no {kind!r} entry for each of {len(prompts)} prompts")
        return [self._prompt(kind, number, len(ids)) for number, ids in enumerate(prompts)]

    def refuse(self, problem: str) -> NoReturn:
        """The error for a bundle that contradicts itself."""
        raise CheckpointError(f"{self.folder}: {problem}. {REMADE}")

    def _prompt(self, kind: str, number: int, length: int) -> PromptRun:
        prefix = f"{kind}.{number}."
        own = {
            name.removeprefix(prefix): array
            for name, array in self.arrays.items()
            if name.startswith(prefix)
        }
        others = {"logits": length, "normalizer": length, "given": length - 1, "top": length}
        for name, rows in others.items():
            if name not in own or len(own[name]) != rows:
                self.refuse(f"{TENSORS} holds no {prefix}{name} of {rows} rows")
        points = {name: array for name, array in own.items() if name not in others}
        wrong = [name for name, array in points.items() if array.shape[0] != length]
        if wrong or not points:
            self.refuse(f"{TENSORS} holds no values of {length} tokens at {prefix}{wrong[:1]}")
        return PromptRun(
            points=points,
            logits=own["logits"],
            normalizer=own["normalizer"],
            given=own["given"],
            top=own["top"],
            continuation=self._continuation(kind, number),
        )

    def _continuation(self, kind: str, number: int) -> Continuation:
        steps = self.greedy[kind][number]
        try:
            tokens, ids = list(steps["tokens"]), np.asarray(steps["ids"], np.int32)
            logits = np.asarray(steps["logits"], np.float32)
        except (KeyError, TypeError, ValueError) as error:
            self.refuse(f"the {kind} continuation of prompt {number} is malformed ({error!r})")
        count = self.fields.integer("new_tokens", minimum=0)
        if len(tokens) != count or ids.shape != logits.shape or len(ids) != count:
            self.refuse(f"the {kind} continuation of prompt {number} is not {count} steps long")
        return Continuation(tokens, ids, logits)
