"""Which programs are compiled before requests are admitted, as far as settings tell. No jax."""

from __future__ import annotations

from dataclasses import dataclass

from jengine.assembly.settings.values import one_of
from jengine.errors import ConfigError

# Default: only the largest step.
USUAL_WAIT = "largest"


@dataclass(frozen=True)
class WarmUp:
    """Settings that decide which programs are compiled first. `asked`:
    `compilation_config["wait_for"]`."""

    asked: str | None
    seeded: bool
    deterministic: bool
    strict: bool
    enforce_eager: bool
    num_scheduler_steps: int
    executor: str

    def wait_for(self, *, same_bits: bool) -> str:
        """Return "largest" or "all". `same_bits`: every program gives a row the same bits."""
        if self.asked is not None:
            return self.asked
        exact = self.seeded and not (same_bits or self.deterministic)
        return "all" if exact or any(self._reasons().values()) else USUAL_WAIT

    def check(self) -> None:
        """Raise ConfigError if wait_for="largest" is combined with a setting that needs every
        program compiled before the first request."""
        chosen = self.wait_for(same_bits=False)
        one_of("compilation_config['wait_for']", chosen, ("all", "largest"))
        reason = next((why for why, given in self._reasons().items() if given), None)
        if chosen == "largest" and reason is not None:
            raise ConfigError(
                f"compilation_config['wait_for']='largest' with {reason}. Leave one of them out."
            )

    def _reasons(self) -> dict[str, bool]:
        """Settings that rule out compiling while steps run, and whether each is in use."""
        return {
            "strict=True: no step may meet a program that is still to be compiled": self.strict,
            "enforce_eager=True: nothing is compiled before a step needs it": self.enforce_eager,
            f"num_scheduler_steps={self.num_scheduler_steps}: the largest step runs once": (
                self.num_scheduler_steps != 1
            ),
            f"executor={self.executor!r}: every process must run the same program": (
                self.executor not in ("auto", "local")
            ),
        }
