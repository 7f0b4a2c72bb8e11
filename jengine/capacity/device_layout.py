"""Layout of devices: data-parallel replicas, pipeline stages, groups that divide the tokens of a
step, tensor-parallel devices.

In: sizes that a user gives. Out: a Layout, or a ConfigError. Must not know models.
"""

from __future__ import annotations

from dataclasses import dataclass

from jengine.errors import ConfigError

DEVICES_A_HOST = 8


@dataclass(frozen=True)
class DeviceLayout:
    """Devices in the order dp, pp, pcp, tp: neighbours share a layer."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    hosts: int = 1
    ep: int = 0  # devices that share the experts, each with some whole; 0: as other weights
    dcp: int = 1  # of the tp devices, those that divide the cached tokens of each request
    pcp: int = 1  # groups of tp devices, each with all weights, that divide the tokens of a step

    @property
    def expert_ranks(self) -> int:
        """Number of replicas whose tokens meet at each device's experts."""
        return max(self.ep // self.tp, 1)

    @property
    def devices(self) -> int:
        return self.devices_a_replica * self.dp

    @property
    def devices_a_replica(self) -> int:
        """Devices that run one step together."""
        return self.tp * self.pcp * self.pp

    def own_tokens(self, tokens: int) -> int:
        """Tokens of a step that each device computes."""
        return -(-tokens // self.pcp)

    @property
    def devices_a_host(self) -> int:
        """Devices per host, the same on every host."""
        return self.devices // self.hosts

    @property
    def tensor_hosts(self) -> int:
        """Number of hosts that share a layer."""
        return -(-self.tp // self.devices_a_host)

    @property
    def stages_cross_hosts(self) -> bool:
        """Whether some stage sends its activations to another host."""
        return self.pp > 1 and self.devices_a_replica > self.devices_a_host


def checked_layout(
    tp: int = 1, pp: int = 1, dp: int = 1, hosts: int | None = None, ep: int = 0,
    dcp: int = 1, pcp: int = 1,
) -> DeviceLayout:  # fmt: skip
    """A layout that real hosts can have. Without a number of hosts: eight devices on each."""
    sizes = {"tp": tp, "pp": pp, "dp": dp, "hosts": hosts, "dcp": dcp, "pcp": pcp}
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value}: expected 1 or more.")
    devices = tp * pcp * pp * dp
    if ep and (pp > 1 or ep < 0 or ep % tp or (tp * dp) % ep):
        raise ConfigError(
            f"--ep {ep} with tp {tp} x pp {pp} x dp {dp}: expected one stage, and a multiple of tp "
            f"that divides the {tp * pp * dp} devices."
        )
    if tp % dcp:
        raise ConfigError(
            f"--dcp {dcp} with --tp {tp}: expected a divisor of the devices per layer, among which "
            "it divides the cached tokens of each request."
        )
    if pcp > 1 and (pp > 1 or ep):
        other = f"--pp {pp}" if pp > 1 else f"--ep {ep}"
        raise ConfigError(
            f"--pcp {pcp} with {other}: engines do not have both. Leave one of them out."
        )
    hosts = hosts or -(-devices // DEVICES_A_HOST)
    sizes_shown = f"tp {tp}{f' x pcp {pcp}' * (pcp > 1)} x pp {pp} x dp {dp}"
    if devices % hosts:
        raise ConfigError(
            f"{devices} devices ({sizes_shown}) on {hosts} hosts: expected the same number on "
            "each. Give another --hosts."
        )
    layout = DeviceLayout(tp, pp, dp, hosts, ep, dcp, pcp)
    here = layout.devices_a_host
    if tp % here and here % tp:
        raise ConfigError(
            f"--tp {tp} with {here} devices a host: expected one to divide the other, so that "
            "no host holds parts of two groups unevenly."
        )
    return layout
