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
    """A repository, optionally with a GGUF quantization and a pinned commit."""

    repo: str
    quant: str | None = None
    commit: str | None = None

    def __str__(self) -> str:
        return self.repo if self.quant is None else f"{self.repo}:{self.quant}"


def hub_name(text: str) -> HubName | None:
    """Parse `org/name`, `org/name:Q4_K_M`, or the snapshot path of another host's cache; None for
    anything else."""
    if found := SNAPSHOT.search(text):
        org, name, commit, _ = found.groups()
        return HubName(f"{org}/{name}", None, commit)
    found = NAME.fullmatch(text)
    if found is None or found[1].endswith(GGUF):
        return None
    return HubName(found[1], found[2])


def shown_name(path: Path | str) -> str:
    """Display name of a model: the repository if the path is in a download cache, else the path."""
    found = SNAPSHOT.search(str(path))
    return f"{found[1]}/{found[2]}" if found else str(path)
