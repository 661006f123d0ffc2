"""A hub on this machine: the requests of huggingface_hub that fetch a model, answered from folders.

It answers /api/models/REPOSITORY, .../revision/REVISION, .../tree/REVISION and
/REPOSITORY/resolve/REVISION/FILE, the
latter with the headers that a cache is kept by (ETag, X-Repo-Commit).
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Hub(ThreadingHTTPServer):
    """commits: repository -> its revisions, the last one being `main`, each a folder. refused:
    repository -> (status, X-Error-Code) of every answer. bodies:
    files that were sent, each time."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.commits: dict[str, dict[str, Path]] = {}
        self.refused: dict[str, tuple[int, str]] = {}
        self.bodies: list[str] = []
        self.asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, repository: str, folder: Path) -> str:
        """A new revision of a repository."""
        content = [f"{p.name} {digest(p)}" for p in sorted(folder.iterdir())]
        revision = hashlib.sha1("\n".join([repository, *content]).encode()).hexdigest()
        self.commits.setdefault(repository, {})[revision] = folder
        return revision


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        self.server.asked += 1
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        owner, name, *rest = parts[2:] if api else parts
        repository = f"{owner}/{name}"
        revisions = self.server.commits.get(repository, {})
        status, code = self.server.refused.get(repository, (0, ""))
        if status or not revisions:
            return self.send(status or 401, {"X-Error-Code": code} if code else {}, b"{}", body)
        asked = rest[1] if len(rest) > 1 else "main"
        revision = list(revisions)[-1] if asked == "main" else asked
        if revision not in revisions:
            return self.send(404, {"X-Error-Code": "RevisionNotFound"}, b"{}", body)
        folder = revisions[revision]
        if api and rest[:1] == ["tree"]:
            listed = [
                {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": digest(p)}
                for p in sorted(folder.iterdir())
            ]
            return self.send(200, {}, json.dumps(listed).encode(), body)
        if api:
            files = [{"rfilename": p.name} for p in sorted(folder.iterdir())]
            about = {"id": repository, "modelId": repository, "sha": revision, "siblings": files}
            return self.send(200, {"X-Repo-Commit": revision}, json.dumps(about).encode(), body)
        self.file(folder / "/".join(rest[2:]), revision, body)

    def file(self, path: Path, revision: str, body: bool) -> None:
        if not path.is_file():
            return self.send(404, {"X-Error-Code": "EntryNotFound"}, b"", body)
        content = path.read_bytes()
        headers = {"ETag": f'"{digest(path)}"', "X-Repo-Commit": revision}
        if body:
            self.server.bodies.append(path.name)
        self.send(200, headers, content, body)

    def send(self, status: int, headers: dict[str, str], content: bytes, body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
