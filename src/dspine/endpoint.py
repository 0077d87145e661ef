"""A server of OpenAI's API (SGLang, vLLM, our own), and who asks it.

One rule: the key is shown to the server alone; no message and no file of ours holds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx

from dspine.errors import ConfigError

_SUCH = "Give one such as http://localhost:30000/v1."


@dataclass(frozen=True)
class Endpoint:
    """A server and one of its models.

    url: of the interface, mostly ending in `/v1`; anything but http(s) and a host is a ConfigError.
    model: the name that the server knows it by.
    key: of the API, where it asks for one.
    timeout: seconds without any byte after which a request has failed.
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 600.0

    def __post_init__(self) -> None:
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"{self.url} is no address: {error}", _SUCH) from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"{self.url} is no address of a server", _SUCH)

    def at(self, path: str) -> str:
        """The address of a route, "models" or "chat/completions"."""
        return f"{self.url.rstrip('/')}/{path}"

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def client(self, connections: int) -> httpx.AsyncClient:
        """Whoever asks, with so many requests under way at once; to be closed."""
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        return httpx.AsyncClient(headers=self.headers, timeout=self.timeout, limits=limits)
