"""Classifies IP addresses as public or not.

In: an address as a resolver returns it. Out: whether it is public.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

# Networks whose addresses hold one of IPv4 in their last 32 bits: IPv4-compatible, NAT64.
LAST_BITS = (IPv6Network("::/96"), IPv6Network("64:ff9b::/96"))
LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")


def is_public(address: str) -> bool:
    """Whether an address, and any IPv4 address embedded in it, is globally routable and unicast."""
    one = ip_address(address.split("%")[0])
    if isinstance(one, IPv6Address):
        if one in LOCAL_NAT64:
            return False
        if inner := held(one):
            return all(is_public(str(each)) for each in inner)
    return one.is_global and not one.is_multicast


def held(one: IPv6Address) -> tuple[IPv4Address, ...]:
    """IPv4 addresses embedded in an IPv6 one (mapped, 6to4, Teredo, NAT64)."""
    if any(one in network for network in LAST_BITS):
        return (IPv4Address(int(one) & 0xFFFFFFFF),)
    found = (one.ipv4_mapped, one.sixtofour, *(one.teredo or ()))
    return tuple(each for each in found if each is not None)
