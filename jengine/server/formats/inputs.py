"""Checks of lists of prompts, which endpoints share."""

from __future__ import annotations

from typing import Any

from jengine.server.errors import ApiError


def one_kind(given: list[Any], kind: type, name: str) -> list[Any]:
    """Return the items of a list field; ApiError if one is not an instance of `kind`."""
    for index, item in enumerate(given):
        if type(item) is not kind:
            raise ApiError(
                400,
                f"{name}[{index}] is of another kind than {name}[0]; expected a list of texts, of "
                "token ids, or of lists of token ids.",
                param=f"{name}[{index}]",
            )
    return given
