"""Names of repositories, and the snapshots of them in a download cache."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?::([\w.-]+))?")
SNAPSHOT = re.compile(r"models--(\w[\w.-]*?)--(\w[\w.-]*)/snapshots/([0-9a-f]{40})(?:/(.+))?$")
GGUF = ".gguf"


@dataclass(frozen=True)
class HubName:
    """A repository; which of its GGUF files, by their quantization; a certain commit."""

    repo: str
    quant: str | None = None
    commit: str | None = None

    def __str__(self) -> str:
        return self.repo if self.quant is None else f"{self.repo}:{self.quant}"


def hub_name(text: str) -> HubName | None:
    """The repository that a text names: org/name, org/name:Q4_K_M, or the path of a snapshot of
    another host's cache; None: it is no such name."""
    if found := SNAPSHOT.search(text):
        org, name, commit, _ = found.groups()
        return HubName(f"{org}/{name}", None, commit)
    found = NAME.fullmatch(text)
    if found is None or found[1].endswith(GGUF):
        return None
    return HubName(found[1], found[2])


def shown_name(path: Path | str) -> str:
    """What a model is called: the repository, for a folder or file of a download cache; else the
    path as it is."""
    found = SNAPSHOT.search(str(path))
    return f"{found[1]}/{found[2]}" if found else str(path)
