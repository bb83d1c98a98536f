"""From the URLs of a request to bytes. Media are not decoded here.

`data:` URLs are always taken. Remote ones only from hosts the operator listed, and then only from
public addresses: the name is resolved here, every address is checked, and the connection goes to a
checked address itself, so that a second look-up cannot lead elsewhere. Redirects are followed by
hand and each is held to the same rules. Local files are never read.
"""

from __future__ import annotations

import asyncio
import binascii
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urljoin, urlsplit

import httpx

from has.gateway.errors import BadRequest, TooLarge
from has.gateway.job import MediaBytes, MediaKind
from has.gateway.limits import Limits
from has.models.media import LIMITS

FRAMES_MIME = "video/jpeg"
"""As in vLLM: a video as base64 JPEG frames, joined by commas."""

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
Charge = Callable[[int], None]
"""Told how many bytes come, before they are kept; raises Refused where there is no room for them."""

MOST_HEAD = 1024
"""Characters of a data URL before its data."""
_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_RELAYS = ipaddress.ip_network("192.88.99.0/24")  # 6to4 relays (RFC 7526: deprecated)


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """All addresses of `host`, by the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def decode_base64(text: str, param: str | None) -> bytes:
    """Bytes of base64 `text`; line breaks and missing padding are forgiven, anything else is not."""
    compact = text if not any(c in text for c in " \r\n\t") else "".join(text.split())
    try:
        data = binascii.a2b_base64(compact + "=" * (-len(compact) % 4), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"not base64: {error}", param) from error
    if not data:
        raise BadRequest("empty", param)
    return data


def _unescaped(text: str) -> bytes:
    """`text` with its %XX as bytes.

    Quoted-printable writes = for %, and is read in one pass; `urllib` makes an object of every escape, which
    takes seconds where all of a long text is escaped.
    """
    return binascii.a2b_qp(text.encode().replace(b"=", b"=3D").replace(b"%", b"="))


def parse_data_url(
    url: str, kind: MediaKind, param: str | None, most_frames: int = LIMITS.decoded_frames
) -> MediaBytes:
    """A `data:` URL as a medium of `kind`. Its MIME type, if given, must be of that kind."""
    head = _DATA_URL.match(url, 0, MOST_HEAD)
    if head is None:
        raise BadRequest("not a data URL: data:<type>;base64,<data>", param)
    mime = head[1].strip().lower()
    if mime and mime != "application/octet-stream" and not mime.startswith(f"{kind}/"):
        raise BadRequest(f"a data URL of type {mime} is no {kind}", param)
    body = url[head.end() :]
    if not any(part.strip().lower() == "base64" for part in head[2].split(";")):
        raw = _unescaped(body)
        if not raw:
            raise BadRequest("empty", param)
        return MediaBytes(kind, raw, mime or None, param)
    if kind == "video" and mime == FRAMES_MIME:
        if body.count(",") >= most_frames:
            raise TooLarge(f"the video has more than {most_frames} frames", param)
        frames = tuple(decode_base64(frame, param) for frame in body.split(","))
        return MediaBytes(kind, frames, mime, param)
    if "%" in body:
        body = _unescaped(body).decode("ascii", "replace")
    return MediaBytes(kind, decode_base64(body, param), mime or None, param)


def is_public(address: str) -> bool:
    """True for an address of the public Internet, also when it hides in an IPv6 form of an IPv4 one."""
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
        if ip.is_site_local:
            return False
    elif ip in _RELAYS:
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def host_allowed(host: str, domains: Sequence[str]) -> bool:
    """`host` is one of `domains`; `*.example.org` stands for every host below example.org."""
    name = host.lower().rstrip(".")
    for domain in domains:
        listed = domain.lower().rstrip(".")
        if name == listed or (listed.startswith("*.") and name.endswith(listed[1:])):
            return True
    return False


class MediaUrls:
    """Turns URLs into media, within limits. `allowed_domains` empty: no remote media at all."""

    def __init__(
        self,
        limits: Limits,
        allowed_domains: Sequence[str] = (),
        *,
        resolver: Resolver = resolve_host,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._limits = limits
        self._domains = tuple(allowed_domains)
        self._resolver = resolver
        # No proxies from the environment: a proxy would resolve the name again, unchecked.
        self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False, transport=transport)

    async def close(self) -> None:
        await self._client.aclose()

    async def load(
        self, url: str, kind: MediaKind, param: str | None = None, charge: Charge = lambda _: None
    ) -> MediaBytes:
        """The medium behind `url`; what is fetched is told to `charge`. Raises BadRequest, or TooLarge, naming `param`."""
        scheme = url[: url.find(":")].lower() if ":" in url else ""
        if scheme == "data":
            return parse_data_url(url, kind, param, self._limits.media.decoded_frames)
        if scheme not in ("http", "https"):
            raise BadRequest("only data, https and http URLs are taken", param)
        if not self._domains:
            raise BadRequest(
                "remote media are off; send a data URL, or have the server allow the host", param
            )
        try:
            async with asyncio.timeout(self._limits.remote_s):
                return await self._fetch(url, kind, param, charge)
        except TimeoutError as error:
            raise BadRequest(f"the medium did not come within {self._limits.remote_s:g} s", param) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise BadRequest(f"the medium could not be fetched ({type(error).__name__})", param) from error

    async def _fetch(self, url: str, kind: MediaKind, param: str | None, charge: Charge) -> MediaBytes:
        for _ in range(self._limits.redirects + 1):
            request = await self._request(url, param)
            response = await self._client.send(request, stream=True)
            try:
                if response.is_redirect:
                    url = urljoin(url, response.headers["location"])
                    continue
                if response.status_code != 200:
                    raise BadRequest(f"the host answered {response.status_code}", param)
                data = await self._body(response, param, charge)
                return MediaBytes(kind, data, response.headers.get("content-type"), param)
            finally:
                await response.aclose()
        raise BadRequest(f"more than {self._limits.redirects} redirects", param)

    async def _request(self, url: str, param: str | None) -> httpx.Request:
        """A GET to a checked address of the URL's host, under the host's own name."""
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise BadRequest("not a URL", param) from error
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
            raise BadRequest("only plain http and https URLs are followed", param)
        if not host_allowed(host, self._domains):
            raise BadRequest(f"media from {host} are not allowed", param)
        addresses = await self._resolver(host, port)
        if not addresses or not all(is_public(address) for address in addresses):
            raise BadRequest(f"{host} is not a public host", param)
        request = self._client.build_request(
            "GET",
            httpx.URL(url, host=addresses[0], fragment=None),
            headers={"Host": parts.netloc, "Accept-Encoding": "identity"},
            timeout=self._limits.remote_s,
        )
        # The certificate is that of the name, though the connection goes to the address.
        request.extensions = {**request.extensions, "sni_hostname": host}
        return request

    async def _body(self, response: httpx.Response, param: str | None, charge: Charge) -> bytes:
        most = self._limits.media.max_bytes
        pieces, size = [], 0
        async for piece in response.aiter_raw():
            size += len(piece)
            if size > most:
                raise TooLarge(f"the medium is larger than {most} bytes", param)
            charge(len(piece))
            pieces.append(piece)
        return b"".join(pieces)
