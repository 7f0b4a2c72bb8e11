"""Parses a server's URL.

In: http://host:8000, with or without a trailing /v1. Out: host, port, and endpoint paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from jengine.errors import ConfigError

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """A server's address. `prefix` is a path before its routes, as behind a gateway."""

    secure: bool
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def of(cls, url: str) -> Address:
        """Parse a URL; a trailing /v1, which OpenAI's client wants, is dropped. Raises
        ConfigError."""
        wanted = "expected one like http://127.0.0.1:8000"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"URL {url!r}: {wanted} ({error}).") from error
        if parts.scheme not in PORTS or not parts.hostname:
            raise ConfigError(f"URL {url!r}: {wanted}.")
        if parts.username or parts.query or parts.fragment:
            raise ConfigError(f"URL {url!r}: {wanted}, without a user name, ? or #.")
        prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(parts.scheme == "https", parts.hostname, port or PORTS[parts.scheme], prefix)

    @property
    def authority(self) -> str:
        """Host and port for the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def path(self, route: str) -> str:
        """Prefixed path of a route such as /v1/models."""
        return self.prefix + route

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.prefix}"


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))
