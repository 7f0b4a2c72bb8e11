"""Engines of several cores or processes: data-parallel replicas and their router, leader and
followers."""

from typing import TYPE_CHECKING, Any

from jengine.vllm_names import name_in_room

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        return name_in_room(__name__, name)
