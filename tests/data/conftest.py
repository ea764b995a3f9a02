"""A data folder of one's own, and a web server on this machine."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """An empty data folder; tests marked `data` see the real one."""
    path = tmp_path / "store"
    if request.node.get_closest_marker("data") is None:
        monkeypatch.setenv("NNARENA_DATA", str(path))
    monkeypatch.delenv("NNARENA_OFFLINE", raising=False)
    return path


@pytest.fixture
def mnist_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (6, 28, 28), dtype=np.uint8),
        "y_train": rng.integers(0, 10, 6, dtype=np.uint8),
        "x_test": rng.integers(0, 256, (2, 28, 28), dtype=np.uint8),
        "y_test": rng.integers(0, 10, 2, dtype=np.uint8),
    }


class Site:
    """What the server serves and what it was asked. `cut_after`: how many bytes it sends of each answer, in turn."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.ranges = True
        self.cut_after: list[int] = []
        self.address = ""

    def url(self, path: str) -> str:
        return self.address + path


@pytest.fixture
def site() -> Iterator[Site]:
    """A real HTTP server on loopback."""
    site = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            site.requests.append((self.path, asked))
            body = site.files.get(self.path)
            if body is None:
                self.send_error(404)
                return
            match = re.fullmatch(r"bytes=(\d+)-", asked or "") if site.ranges else None
            start = int(match[1]) if match else 0
            if match and start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if match else 200)
            if match:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            sent = body[start:]
            self.wfile.write(sent[: site.cut_after.pop(0)] if site.cut_after else sent)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = False  # so that closing the server waits for its sockets
        site.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield site
        server.shutdown()
        thread.join()
