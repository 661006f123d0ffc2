"""A download of several gigabytes goes on where it was interrupted."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from metrics.networks import fetch

CONTENT = bytes(range(256)) * 64
DIGEST = hashlib.sha256(CONTENT).hexdigest()[:8]


@pytest.fixture
def server():
    """Serves parts of a file; `breaks_at`: bytes behind which the next connection ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            start = int(self.headers.get("Range", "bytes=0-")[6:-1])
            sent.append(start)
            if start >= len(CONTENT):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            self.wfile.write(CONTENT[start : http.breaks_at])
            http.breaks_at = None

        def log_message(self, *_): ...

    sent: list[int] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.breaks_at, http.sent = None, sent
        threading.Thread(target=http.serve_forever, daemon=True).start()
        http.url = f"http://127.0.0.1:{http.server_port}/weights"
        yield http
        http.shutdown()


def test_an_interrupted_download_goes_on(server, tmp_path):
    path, server.breaks_at = tmp_path / "weights", 5000
    with pytest.raises(OSError, match="the same command goes on"):
        fetch(server.url, path, DIGEST)
    assert not path.exists()
    fetch(server.url, path, DIGEST)
    assert path.read_bytes() == CONTENT and server.sent == [0, 5000]
    assert [one.name for one in tmp_path.iterdir()] == ["weights"]


def test_a_download_that_was_complete_is_taken(server, tmp_path):
    (tmp_path / "weights.part").write_bytes(CONTENT)
    fetch(server.url, tmp_path / "weights", DIGEST)
    assert (tmp_path / "weights").read_bytes() == CONTENT


def test_another_file_is_dropped(server, tmp_path):
    with pytest.raises(OSError, match="another SHA-256"):
        fetch(server.url, tmp_path / "weights", "00000000")
    assert not [*tmp_path.iterdir()]
