"""The data-parallel ranks of an engine, and which of them run on this host. No jax."""

from __future__ import annotations

from typing import Any, NamedTuple

from jengine.errors import ConfigError
from jengine.executor.ray.options import RayOptions


def checked_rank_options(backend: str, given: Any) -> None:
    """Check `data_parallel_options`, which apply to Ray only."""
    if given is None:
        return
    if backend != "ray":
        raise ConfigError(
            f"data_parallel_options with data_parallel_backend={backend!r}: expected 'ray', whose "
            "options they are. Leave them out."
        )
    if RayOptions.checked(given, "data_parallel_options").workers is not None:
        raise ConfigError(
            "data_parallel_options['workers']: there is one worker for each rank; give "
            "data_parallel_size."
        )


class Ranks(NamedTuple):
    """Total number of data-parallel ranks, and the range of this host's."""

    size: int
    local: range

    @property
    def elsewhere(self) -> int:
        """Number of ranks on other hosts."""
        return self.size - len(self.local)

    @classmethod
    def checked(
        cls, size: int | None, local: int | None, start: int | None, address: str | None
    ) -> Ranks:
        """Build from the data_parallel_* settings. Raises ConfigError."""
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

    @classmethod
    def on_ray(cls, size: int | None, local: int | None, start: int | None) -> Ranks:
        """All ranks as actors on Ray, which chooses their nodes."""
        for name, value in (("size_local", local), ("start_rank", start)):
            if value is not None:
                raise ConfigError(
                    f"data_parallel_{name}={value!r} with data_parallel_backend='ray': Ray chooses "
                    "where ranks run; leave it out."
                )
        if (size or 1) < 2:
            raise ConfigError(
                f"data_parallel_backend='ray' with data_parallel_size={size}: expected at least 2. "
                "executor='ray' runs the steps of one engine on Ray."
            )
        return cls(size or 1, range(0))
