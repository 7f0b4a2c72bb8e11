"""Refusal of combined settings. No jax."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.errors import UnsupportedFeature


def refuse_together(what: str, others: Mapping[str, bool]) -> None:
    """Raise UnsupportedFeature for the first of `others` in use; its key is shown in the error."""
    for name, is_used in others.items():
        if is_used:
            raise UnsupportedFeature(f"{what} with {name} is not built; leave one of them out.")
