"""A small Hugging Face hub on this machine: the part of its web interface that downloads use."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0" * 39 + "1"
CUT_BYTES = 12 * 2**20  # a little more than what the client reads and keeps at a time
HUGE = str(2**60)  # what a repository with "huge" in its name says of its weights
# repository -> (status, X-Error-Code) that the hub answers with
REFUSED = {
    "some/gated": (403, "GatedRepo"),
    "some/absent": (401, "RepoNotFound"),
    "some/failing": (500, ""),
}


@contextmanager
def serve(models: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Serve folders as repositories; gives the address and the paths asked for so far."""
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"models": models, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    models: dict[str, Path]
    asked: list[str]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0].strip("/")
        self.asked.append(path)
        parts = path.removeprefix("api/models/").split("/")
        repo, rest = "/".join(parts[:2]), parts[2:]
        if repo in REFUSED:
            status, code = REFUSED[repo]
            self._send(status, b"{}", {"X-Error-Code": code} if code else {}, with_body)
        elif repo not in self.models:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
        elif rest[1:2] not in (["main"], [COMMIT]):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
        elif path.startswith("api/models/"):
            self._send(200, json.dumps(self._listing(repo, rest[0])).encode(), {}, with_body)
        else:
            huge = "huge" in repo and path.endswith(".safetensors")
            self._send_file(self.models[repo] / rest[2], with_body, {"X-Linked-Size": HUGE} if huge else {})

    def _listing(self, repo: str, kind: str) -> Any:
        files = sorted(self.models[repo].iterdir())
        outside = ["../../../../out.json"] if "evil" in repo else []
        if kind == "tree":
            listed = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": _etag(f)} for f in files]
            return listed + [{"type": "file", "path": name, "size": 2, "oid": "1" * 40} for name in outside]
        names = [file.name for file in files] + outside
        return {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}

    def _send_file(self, file: Path, with_body: bool, size: dict[str, str]) -> None:
        if not file.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, with_body)
            return
        content = file.read_bytes()
        headers = {"ETag": f'"{_etag(file)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes", **size}
        if "damaged" in self.path and file.suffix == ".safetensors":
            content = bytes(len(content))
        if "cut" in self.path and file.suffix == ".safetensors" and with_body:
            self._send_a_part(content, headers)
        else:
            self._send(200, content, headers, with_body)

    def _send_a_part(self, content: bytes, headers: dict[str, str]) -> None:
        """From where the client asks, ``CUT_BYTES`` at most; then the line breaks, for ``cut-dead`` for good."""
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.asked.append(f"from {start}")
        rest = content[start:]
        ranged = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        self._send(206 if start else 200, rest, {**headers, **ranged}, with_body=False)
        if start == 0 or "dead" not in self.path:
            self.wfile.write(rest[:CUT_BYTES])
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _etag(file: Path) -> str:
    """SHA-256 of large files and another hash of small ones, as on the real hub."""
    kind = hashlib.sha256 if file.suffix == ".safetensors" else hashlib.sha1
    return kind(file.read_bytes()).hexdigest()
