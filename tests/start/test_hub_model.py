"""Models on the hub: what another shape would cost is known before weights are downloaded; a cache needs no network."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants as hub
import pytest

from scalelab.errors import LabError
from scalelab.start.hub_model import hub_model

COMMIT = "c0ffee" + "0" * 34
FILES = {
    "config.json": b'{"hidden_size": 64}',
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "original/model.safetensors": b"the same in another format",
    "picture.png": b"none of a model",
}


@dataclass
class Hub:
    """A hub on the loopback interface with one model.

    Attributes:
        asked: files whose content was sent.
        refuses: the hub's code for its answer to everything; empty: it answers.
    """

    asked: list[str] = field(default_factory=list)
    refuses: str = ""

    def answer(self, path: str) -> tuple[bytes, dict[str, str]] | None:
        """Content and headers for a path; None if there is nothing."""
        if path.startswith("/api/models/lab/small/revision/"):
            return json.dumps({"id": "lab/small", "sha": COMMIT, "siblings": []}).encode(), {}
        if path.startswith("/api/models/lab/small/tree/"):
            entries = [{"type": "file", "path": name, "size": len(FILES[name]), "oid": _id(name)} for name in FILES]
            return json.dumps(entries).encode(), {"Content-Type": "application/json"}
        name = path.removeprefix(f"/lab/small/resolve/{COMMIT}/")
        if name not in FILES:
            return None
        return FILES[name], {"ETag": f'"{_id(name)}"', "X-Repo-Commit": COMMIT}


def _id(name: str) -> str:
    return hashlib.sha1(FILES[name]).hexdigest()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub that the client asks, with a cache of its own."""
    there = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = None if there.refuses else there.answer(self.path.partition("?")[0])
            body, headers = found or (b"{}", {"X-Error-Code": there.refuses or "RepoNotFound"})
            self.send_response(200 if found else 403)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                if found and "/resolve/" in self.path:  # before the body, whose reader may look at once
                    there.asked.append(self.path.rpartition(f"{COMMIT}/")[2])
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{listening.server_port}"
    monkeypatch.setattr(hub, "ENDPOINT", address)
    monkeypatch.setattr(hub, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    yield there
    listening.shutdown()
    listening.server_close()


def accept(folder: Path) -> None:
    assert json.loads((folder / "config.json").read_text()) == {"hidden_size": 64}


def test_a_model_is_downloaded_once_and_afterwards_needs_no_hub(server: Hub) -> None:
    folder = hub_model("lab/small", accept)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert sorted(server.asked) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert folder.name == COMMIT
    server.refuses = "RepoNotFound"
    assert hub_model("lab/small", accept) == folder
    assert hub_model(f"lab/small@{COMMIT}", accept) == folder


def test_a_model_of_another_shape_is_refused_by_its_configuration_alone(server: Hub) -> None:
    def refuse(folder: Path) -> None:
        raise LabError("another shape")

    for _ in range(2):  # a cache with the configuration alone is no model
        with pytest.raises(LabError, match="another shape"):
            hub_model("lab/small", refuse)
    assert server.asked == ["config.json"]
    assert (hub_model("lab/small", accept) / "model.safetensors").exists()


def test_a_download_that_broke_off_is_completed(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    index = json.dumps({"weight_map": {"a": first, "b": second}}).encode()
    files = {"config.json": b'{"hidden_size": 64}', "model.safetensors.index.json": index, first: b"1", second: b"2"}
    monkeypatch.setattr(f"{__name__}.FILES", files)
    folder = hub_model("lab/small", accept)
    assert server.asked[-2:] in ([first, second], [second, first]), "weights come last"
    (folder / second).resolve().unlink()
    (folder / second).unlink()
    assert hub_model("lab/small", accept) == folder
    assert (folder / second).read_bytes() == b"2"
    server.refuses = "RepoNotFound"
    assert hub_model("lab/small", accept) == folder


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("GatedRepo", r"lab/small is gated: accept its licence on https://huggingface.co/lab/small"),
        ("RepoNotFound", r"the hub has no model lab/small that you may read"),
        ("RevisionNotFound", r"lab/small has no revision v2: name a branch"),
        ("Overloaded", r"cannot download lab/small from the hub \(.*`hf download lab/small --local-dir FOLDER`"),
    ],
)
def test_a_model_that_cannot_be_had_is_said_in_one_line(server: Hub, code: str, said: str) -> None:
    server.refuses = code
    with pytest.raises(LabError, match=said) as refused:
        hub_model("lab/small@v2", accept)
    assert "\n" not in str(refused.value)
    assert server.asked == []


@pytest.mark.parametrize("name", ["", "small", "lab/small/more", "lab/", "../small/..", "lab/small --force"])
def test_what_names_no_model_is_refused_without_a_download(server: Hub, name: str) -> None:
    with pytest.raises(LabError):
        hub_model(name, accept)
    assert server.asked == []
