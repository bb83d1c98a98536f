"""Media by URL: data URLs, and remote hosts held to the operator's list and to public addresses."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import shutil
import ssl
import subprocess
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.gateway.errors import BadRequest, TooLarge
from has.gateway.limits import Limits
from has.gateway.media_urls import (
    MOST_HEAD,
    MediaUrls,
    decode_base64,
    host_allowed,
    is_public,
    parse_data_url,
)
from has.models.media import MediaLimits

PUBLIC = "93.184.216.34"


class Host(BaseHTTPRequestHandler):
    """A remote host: `/to/<url>` redirects there, `/big` and `/bomb` send much, `/slow` hangs, else the path comes back."""

    release = threading.Event()

    def do_GET(self):
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path == "/slow":
            self.release.wait(30)
            return
        body = b"x" * 100_000 if self.path == "/big" else f"{self.headers['Host']}{self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Type", "image/png")
        if self.path == "/bomb":  # claims compression that nobody asked for
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def host_port():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    Host.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


class ToLoopback(httpx.AsyncHTTPTransport):
    """Carries connections to public addresses to the host on this machine instead, and notes where they meant to go."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.went: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.went.append(request.url.host)
        request.url = request.url.copy_with(scheme="http", host="127.0.0.1", port=self.port)
        return await super().handle_async_request(request)


def load(
    url,
    port,
    *,
    domains=("pictures.example",),
    names=None,
    limits=None,
    kind="image",
    charge=lambda _: None,
):
    """(what came or the error, where connections went)."""
    transport = ToLoopback(port)

    async def resolver(host: str, _port: int):
        return (names or {"pictures.example": [PUBLIC]})[host]

    async def run():
        urls = MediaUrls(limits or Limits(), domains, resolver=resolver, transport=transport)
        try:
            return await urls.load(url, kind, "p", charge)
        except BadRequest as error:
            return error
        finally:
            await urls.close()

    result = asyncio.run(run())
    assert not isinstance(result, BadRequest) or result.param == "p"
    return result, transport.went


class TestRemote:
    def test_a_listed_host_is_fetched_from_the_address_that_was_checked(self, host_port):
        medium, went = load("https://pictures.example/a.png?x=1", host_port)
        assert medium.data == b"pictures.example/a.png?x=1"
        assert (medium.kind, medium.format) == ("image", "image/png")
        assert went == [PUBLIC]

    def test_off_unless_hosts_are_listed(self, host_port):
        error, went = load("https://pictures.example/a.png", host_port, domains=())
        assert isinstance(error, BadRequest)
        assert went == []

    @pytest.mark.parametrize(
        "url",
        [
            "https://other.example/a.png",
            "https://pictures.example.evil.example/a.png",
            "https://evil.pictures.example/a.png",
            "https://user:pass@pictures.example/a.png",
            "https://pictures.example@evil.example/a.png",
            "http://127.0.0.1/a.png",
            "http://[::1]/a.png",
            "http://2130706433/a.png",
            "ftp://pictures.example/a.png",
            "gopher://pictures.example/",
            "file:///etc/passwd",
            "https://pictures.example:99999/",
            "https://[broken/",
            "https:///a.png",
            "a.png",
        ],
    )
    def test_hosts_and_schemes_that_are_not_listed(self, host_port, url):
        error, went = load(url, host_port)
        assert isinstance(error, BadRequest)
        assert went == []

    @pytest.mark.parametrize(
        "address",
        ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
         "::1", "fe80::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::", "ff02::1", "fec0::1", "192.88.99.1"],
    )  # fmt: skip
    def test_a_listed_name_that_leads_inside_is_refused(self, host_port, address):
        assert not is_public(address)
        for addresses in ([address], [PUBLIC, address]):
            error, went = load("http://pictures.example/", host_port, names={"pictures.example": addresses})
            assert isinstance(error, BadRequest)
            assert went == []

    def test_a_name_without_address(self, host_port):
        assert isinstance(
            load("http://pictures.example/", host_port, names={"pictures.example": []})[0], BadRequest
        )

    def test_redirects_are_followed_within_the_rules(self, host_port):
        medium, went = load("http://pictures.example/to//b.png", host_port)
        assert medium.data == b"pictures.example/b.png"
        assert len(went) == 2

    @pytest.mark.parametrize(
        "target",
        [
            "http://other.example/",
            "http://127.0.0.1/",
            "http://inside.example/",
            "file:///etc/passwd",
            "data:image/png;base64,AA==",
        ],
    )
    def test_redirects_that_lead_away_are_refused(self, host_port, target):
        names = {"pictures.example": [PUBLIC], "inside.example": ["10.0.0.1"]}
        error, went = load(
            f"http://pictures.example/to/{target}",
            host_port,
            names=names,
            domains=("pictures.example", "inside.example"),
        )
        assert isinstance(error, BadRequest)
        assert went == [PUBLIC]

    def test_redirects_without_end(self, host_port):
        url = "http://pictures.example" + "/to/" * 9 + "/x"
        error, went = load(url, host_port)
        assert "redirects" in error.message
        assert len(went) == Limits().redirects + 1

    def test_too_much_is_not_read_to_the_end(self, host_port):
        error, _ = load(
            "http://pictures.example/big", host_port, limits=Limits(media=MediaLimits(max_bytes=50_000))
        )
        assert isinstance(error, TooLarge)

    def test_every_piece_is_told_before_it_is_kept(self, host_port):
        told = []
        medium, _ = load("http://pictures.example/big", host_port, charge=told.append)
        assert sum(told) == len(medium.data) == 100_000

    def test_compression_is_not_undone(self, host_port):
        medium, _ = load("http://pictures.example/bomb", host_port)
        assert medium.data == b"pictures.example/bomb"

    def test_what_does_not_come(self, host_port):
        assert isinstance(load("http://pictures.example/missing", host_port)[0], BadRequest)
        error, _ = load(
            "http://pictures.example/slow", host_port, limits=dataclasses.replace(Limits(), remote_s=0.2)
        )
        assert "within" in error.message


class TestDataUrl:
    def test_forms(self):
        encoded = base64.b64encode(b"abcd").decode()
        for url in (
            f"data:image/png;base64,{encoded}",
            f"DATA:image/png;BASE64,{encoded}",
            f"data:;base64,{encoded}",
            f"data:application/octet-stream;base64,{encoded}",
            f"data:image/png;name=a.png;base64,{encoded[:3]}\n{encoded[3:]}",
            f"data:image/png;base64,{encoded.rstrip('=')}",
            f"data:image/png;base64,{encoded.replace('=', '%3D')}",
            "data:image/png,%61bcd",
        ):
            assert parse_data_url(url, "image", None).data == b"abcd"

    @pytest.mark.parametrize(
        "url", ["data:", "data:image/png;base64", "data:image/png;base64,", "data:image/png,", "data:text/html;base64,AA==",
                "data:video/mp4;base64,AA==", "data:image/png;base64,A*==", "data:image/png;base64,A"]
    )  # fmt: skip
    def test_faults(self, url):
        with pytest.raises(BadRequest):
            parse_data_url(url, "image", "p")

    @settings(deadline=None, derandomize=True)
    @given(st.binary(min_size=1, max_size=300))
    def test_any_bytes_come_through_escaped(self, data):
        """Whatever of them is escaped, in base64 or not."""
        encoded = base64.b64encode(data).decode()
        for escaped in (quote(encoded, safe=""), "".join(f"%{ord(c):02x}" for c in encoded)):
            url = f"data:audio/wav;base64,{escaped}"
            assert parse_data_url(url, "audio", None).data == data
        for url in (quote(data), quote(data, safe="=&?"), "".join(f"%{byte:02X}" for byte in data)):
            assert parse_data_url(f"data:audio/wav,{url}", "audio", None).data == data

    def test_a_text_of_escapes_alone_is_read_in_one_pass(self):
        """An object for every escape took a hundred bytes of memory a byte of it, and seconds."""
        url = "data:image/png," + "%61" * 2**18
        tracemalloc.start()
        try:
            assert parse_data_url(url, "image", None).data == b"a" * 2**18
            assert tracemalloc.get_traced_memory()[1] < 8 * len(url)
        finally:
            tracemalloc.stop()

    def test_frames_are_counted_before_any_is_decoded(self):
        """The bound is passed by the third; the first is none."""
        url = "data:video/jpeg;base64,@@@@,AAAA,AAAA"
        with pytest.raises(TooLarge, match="more than 2 frames"):
            parse_data_url(url, "video", "p", most_frames=2)
        with pytest.raises(BadRequest, match="not base64"):
            parse_data_url(url, "video", "p", most_frames=3)

    def test_a_head_without_end_is_none(self):
        with pytest.raises(BadRequest, match="not a data URL"):
            parse_data_url("data:image/png" + ";" * MOST_HEAD + ",AAAA", "image", "p")

    @settings(deadline=None, derandomize=True)
    @given(st.binary(min_size=1, max_size=300))
    def test_any_bytes_come_through(self, data):
        encoded = base64.b64encode(data).decode()
        assert parse_data_url(f"data:audio/wav;base64,{encoded}", "audio", None).data == data
        assert decode_base64(encoded.rstrip("="), None) == data


def test_listed_hosts():
    assert host_allowed("A.example.", ["a.example"])
    assert host_allowed("b.a.example", ["*.a.example"])
    assert not host_allowed("a.example", ["*.a.example"])
    assert not host_allowed("ba.example", ["*.a.example", "a.example"])
    assert not host_allowed("", ["a.example"])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program to make a certificate")
@pytest.mark.parametrize(("name", "comes"), [("pictures.example", True), ("other.example", False)])
def test_the_certificate_is_held_against_the_name_not_the_address(tmp_path, name, comes):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    class SecureToLoopback(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request):
            assert request.url.host == PUBLIC
            request.url = request.url.copy_with(host="127.0.0.1", port=server.server_address[1])
            return await super().handle_async_request(request)

    async def resolver(_host, _port):
        return [PUBLIC]

    async def fetch():
        transport = SecureToLoopback(verify=ssl.create_default_context(cafile=str(certificate)))
        urls = MediaUrls(Limits(), ["pictures.example"], resolver=resolver, transport=transport)
        try:
            return await urls.load("https://pictures.example/a.png", "image", "p")
        except BadRequest as error:
            return error
        finally:
            await urls.close()

    try:
        result = asyncio.run(fetch())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert isinstance(result, BadRequest) != comes
    if comes:
        assert result.data == b"pictures.example/a.png"
