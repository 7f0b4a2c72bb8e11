"""Doctor: Hugging Face Hub settings. Makes no request and shows no token."""

from __future__ import annotations

import os

from jengine.cli.checks.finding import Finding
from jengine.hub.cache import cache_folder, cached_models
from jengine.hub.failures import endpoint, is_offline, shown_bytes, token_source


def check() -> list[Finding]:
    """Findings on the hub's address, the download cache and the token's source."""
    return [address(), downloads(), token()]


def address() -> Finding:
    """The hub's address, and whether it is offline."""
    if is_offline():
        text = f"{endpoint()}, not asked: HF_HUB_OFFLINE is set, so only what is cached starts"
        return Finding("note", "hub", text)
    return Finding("OK", "hub", f"{endpoint()}; `jengine pull org/name` tries it")


def downloads() -> Finding:
    folder, found = cache_folder(None), list(cached_models())
    place = next(one for one in (folder, *folder.parents) if one.exists())
    if not os.access(place, os.W_OK):
        text = f"{folder} cannot be written. Set HF_HOME to a folder that can, or change its owner"
        return Finding("note", "model cache", text, {"directory": str(folder)})
    nbytes = sum(one.nbytes + one.unfinished for one in found)
    figures = {"directory": str(folder), "models": len(found), "bytes": nbytes}
    text = f"{folder}, {len(found)} models, {shown_bytes(nbytes)}; `jengine models` lists them"
    return Finding("OK", "model cache", text, figures)


def token() -> Finding:
    source = token_source(None)
    text = "none: public models need none; HF_TOKEN or `hf auth login` gives one"
    return Finding("OK", "hub token", text if source is None else f"that of {source}")
