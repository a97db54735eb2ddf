"""The page on an address: GET only, this computer only unless asked otherwise, and then only with a token."""

import ipaddress
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cobo.errors import ConfigError
from cobo.report.page import build
from cobo.report.watch.now import Now

TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")  # what an address and a cookie hold as it is
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest is in the page
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """Listens as soon as it is made; `url` is what to open."""

    daemon_threads = True
    now: Now

    def __init__(self, now: Now, host: str, port: int, token: str | None) -> None:
        self.now = now
        self.loopback = is_loopback(host)
        self.token = token if token or self.loopback else secrets.token_urlsafe(24)
        if self.token is not None and not TOKEN.fullmatch(self.token):
            raise ConfigError(
                "--token should have at least 16 characters, all of them letters (a to z), digits, - or _; "
                "leave it out to have one made"
            )
        try:
            (self.address_family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"cannot listen on {host} port {port}: {reason}; choose another --port or --host"
            ) from None
        shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_port}/" + (f"?token={self.token}" if self.token else "")

    def server_bind(self) -> None:
        """As ever, but without asking a name server what this computer is called."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone away is no news; anything else is."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def is_loopback(host: str) -> bool:
    """Whether an address, as one binds to it or as a browser names it, is this computer's own."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _hostname(asked: str) -> str:
    """The host that a browser names, without its port; none if that is no address."""
    try:
        return urlsplit(f"//{asked}").hostname or ""
    except ValueError:
        return ""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "cobo", ""
    protocol_version = "HTTP/1.1"
    timeout = 60  # of a connection on which nothing comes

    def do_GET(self) -> None:
        asked, _, more = self.path.partition("?")
        query = {name: values[-1] for name, values in parse_qs(more).items()}
        if self.server.loopback and not is_loopback(_hostname(self.headers.get("Host", ""))):
            self._answer(403, "text/plain", b"This page is for this computer only: open it as localhost.\n")
        elif self.server.token and "token" in query and self._right(query["token"]):
            where = {
                "Location": "/",
                "Set-Cookie": f"{self._cookie}={self.server.token}; HttpOnly; SameSite=Lax; Path=/",
            }
            self._answer(303, "text/plain", b"", where)
        elif self.server.token and not self._right(self._brought()):
            self._answer(403, "text/plain", b"Open the whole address that `cobo watch` printed, with its token.\n")
        elif asked == "/":
            self._answer(200, "text/html; charset=utf-8", build.page(self.server.now.data(), live=True).encode())
        elif asked == "/data":
            self._data(query.get("since"))
        else:
            self._answer(404, "text/plain", b"There is nothing here.\n")

    def _data(self, since: str | None) -> None:
        data = self.server.now.data()
        if data["version"] == since:
            self.send_response(204)
            self.end_headers()
        else:
            self._answer(200, "application/json", json.dumps(data, allow_nan=False).encode())

    @property
    def _cookie(self) -> str:
        return f"cobo-watch-{self.server.server_port}"  # cookies do not know ports

    def _brought(self) -> str:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _right(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), (self.server.token or "").encode())

    def _answer(self, code: int, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tokens do not belong in a log."""


def serve(now: Now, host: str, port: int, token: str | None, say: Callable[[str], None]) -> None:
    """Until Ctrl-C."""
    with Server(now, host, port, token) as server:
        if hasattr(os, "nice"):
            os.nice(10)  # training goes first
        import networkx  # noqa: F401, what takes seconds to import is there before it is needed
        import sklearn.metrics  # noqa: F401

        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has ignored by what runs behind it
        say(f"watching at {server.url} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
