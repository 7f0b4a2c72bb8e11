"""The data-parallel ranks of an engine, and which of them run on this host. No jax."""

from __future__ import annotations

from typing import NamedTuple

from jengine.errors import ConfigError


class Ranks(NamedTuple):
    """How many ranks there are on all hosts, and those of this one."""

    size: int
    local: range

    @property
    def elsewhere(self) -> int:
        """How many run on other hosts."""
        return self.size - len(self.local)

    @classmethod
    def checked(
        cls, size: int | None, local: int | None, start: int | None, address: str | None
    ) -> Ranks:
        """The ranks by the four settings of this name, or a ConfigError about one of them."""
        size = size or 1
        for name, value in (("size_local", local), ("start_rank", start)):
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and 0 <= value <= size):
                raise ConfigError(
                    f"data_parallel_{name}={value!r}: expected a number from 0 to "
                    f"data_parallel_size={size}."
                )
        first = start or 0
        last = size if local is None else first + local
        if last > size:
            raise ConfigError(
                f"data_parallel_start_rank={start} and data_parallel_size_local={local} are ranks "
                f"up to {last - 1}, but data_parallel_size={size}."
            )
        ranks = cls(size, range(first, last))
        if ranks.elsewhere and address is None:
            raise ConfigError(
                f"{ranks.elsewhere} of {size} data-parallel ranks run on other hosts: "
                "data_parallel_address is missing, the address of the host with the front."
            )
        return ranks
