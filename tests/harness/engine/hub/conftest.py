"""Local hub of one model: an HTTP server with the part of the protocol that huggingface_hub uses."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from exitbench.tasks.builtin.corpus import build_tokenizer

NAME = "somebody/tiny-llama"
FIRST, SECOND = "1" * 40, "2" * 40
PADDED_ROWS = 7
"""Number of rows of the embedding without a token."""
TOKEN = "hf_let_me_in"
EVIL = "open({ran!r}, 'w')\nclass Config: pass\nclass Model: pass\nclass Evil: pass\n"

DECOYS = (
    "README.md",
    ".gitattributes",
    "pytorch_model.bin",
    "model.gguf",
    "modeling_evil.py",
    "tokenizer.py",
    "tokenization_evil.py",
    "training_args.bin",
    "optimizer.pt",
    "trainer_state.json",
    "consolidated.safetensors",
    "onnx/model.safetensors",
    "original/tokenizer.model",
    "../tokenizer.json",
    "../../vocab.txt",
    "..\\tokenizer_config.json",
)
"""Other files that repositories have, and files that no repository should have."""

Files = dict[str, bytes]


@dataclass
class Hub:
    """State of the server: its files, faults to simulate, and the requests it received.

    Attributes:
        commits: Files of each commit.
        refs: Commit of each branch and tag.
        gated: Whether files require `TOKEN`, as if users had to accept terms.
        asked: Method and path of every request.
        cut: Files whose download breaks off. False: once, after half of the file. True: always, before the first byte.
        answers: Overrides of the API's answer on a model.
        headers: Overrides of a file's headers, by file name.
        listing: Overrides of the API's listing of a file, by file name.
        ranges: Requested ranges of files.
        tokens_elsewhere: Credentials received by the server of large files.
        endpoint: URL of the hub.
        elsewhere: URL of the server of large files.
    """

    commits: dict[str, Files]
    refs: dict[str, str]
    gated: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    cut: dict[str, bool] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    listing: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokens_elsewhere: list[str] = field(default_factory=list)
    endpoint: str = ""
    elsewhere: str = ""
    stop: Callable[[], None] = lambda: None

    @property
    def files(self) -> Files:
        """Return the files of the newest commit."""
        return self.commits[self.refs["main"]]

    @property
    def requested(self) -> set[str]:
        """Return the names of all requested files, by any HTTP method."""
        of_file = (re.search(r"/resolve/[^/]+/(.*)", path) for _, path in self.asked)
        return {result.group(1) for result in of_file if result}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.asked.append((self.command, path))
        if (result := re.fullmatch(rf"/api/models/{NAME}/(revision|tree)/(.+)", path)) is not None:
            self._api(result.group(1), result.group(2))
        elif (result := re.fullmatch(rf"/{NAME}/resolve/([^/]+|refs/pr/\d+)/(.+)", path)) is not None:
            self._file(result.group(1), result.group(2))
        elif (result := re.fullmatch(r"/cdn/([0-9a-f]+)/(.+)", path)) is not None:
            hub.tokens_elsewhere += self.headers.get_all("authorization", [])
            self._send_file(hub.commits[result.group(1)], result.group(2))
        else:
            self._refuse(401, "RepoNotFound")

    def _api(self, what: str, revision: str) -> None:
        commit = self.hub.refs.get(revision, revision)
        if commit not in self.hub.commits:
            return self._refuse(404, "RevisionNotFound")
        files = self.hub.commits[commit]
        if what == "tree":
            listed = [
                {"type": "file", "path": name, **_described(content), **self.hub.listing.get(name, {})}
                for name, content in files.items()
            ]
            return self._send(json.dumps(listed).encode(), {"Content-Type": "application/json"})
        siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
        told = {"id": NAME, "modelId": NAME, "sha": commit, "siblings": siblings, **self.hub.answers}
        self._send(json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _file(self, revision: str, name: str) -> None:
        commit = self.hub.refs.get(revision, revision)
        files = self.hub.commits.get(commit)
        if self.hub.gated and self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self._refuse(403, "GatedRepo")
        if files is None:
            return self._refuse(404, "RevisionNotFound")
        if name not in files:
            return self._refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
        if not name.endswith(".safetensors"):
            return self._send_file(files, name, {"X-Repo-Commit": commit})
        # Large files are on another server.
        content = files[name]
        self._send(
            b"",
            {
                "X-Repo-Commit": commit,
                "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                "X-Linked-Size": str(len(content)),
                "Location": f"{self.hub.elsewhere}/cdn/{commit}/{name}",
            },
            status=302,
        )

    def _send_file(self, files: Files, name: str, headers: dict[str, str] | None = None) -> None:
        content, begin = files[name], 0
        if wanted := self.headers.get("Range"):
            self.hub.ranges.append(wanted)
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
        told = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', **(headers or {})}
        if begin:
            told["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self._send(content[begin:], told, status=206 if begin else 200, name=name)

    def _refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self._send(b"", {"X-Error-Code": code, "X-Error-Message": code, **(headers or {})}, status)

    def _send(self, content: bytes, headers: dict[str, str], status: int = 200, name: str = "") -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(content)), **headers}
        for key, value in {**headers, **self.hub.headers.get(self.path.split("/")[-1], {})}.items():
            self.send_header(key, value)
        self.send_header("Connection", "close")  # so that a stopped server answers no requests
        self.end_headers()
        if self.command == "HEAD":
            return
        if name not in self.hub.cut:
            self.wfile.write(content)
            return
        if not self.hub.cut[name]:
            del self.hub.cut[name]
            self.wfile.write(content[: len(content) // 2])
        self.close_connection = True


def _described(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "oid": hashlib.sha1(content).hexdigest()}


def _saved(folder: Path) -> Files:
    """Save a sharded bfloat16 checkpoint with tied weights, added tokens and spare embedding rows; return its files."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.add_tokens(["<|turn|>"], special_tokens=True)
    tokenizer.chat_template = "{% for message in messages %}<|turn|>{{ message['content'] }}{% endfor %}<|turn|>"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer) + PADDED_ROWS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=[1, len(tokenizer) - 1],
        auto_map={"AutoConfig": "modeling_evil.Config", "AutoModelForCausalLM": "modeling_evil.Model"},
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.get_input_embeddings().weight.data[-PADDED_ROWS:] *= 30  # so that answers contain them
    model.generation_config.eos_token_id = [1, len(tokenizer) - 1]
    model.save_pretrained(folder, max_shard_size="3KB")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the files of a checkpoint, without those that `hub` adds."""
    return _saved(tmp_path_factory.mktemp("published"))


@pytest.fixture
def hub(published: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Yield the server, which only this process uses, with an empty cache; needs the mark `allow_hosts`."""
    code = EVIL.format(ran=str(tmp_path / "RAN")).encode()
    decoys = {name: code for name in DECOYS}
    commits = {FIRST: {**published, **decoys}, SECOND: {**published, **decoys, "README.md": b"another text"}}
    served = Hub(commits, {"main": FIRST, "refs/pr/4": FIRST, "v1": FIRST})
    handler = type("Handler", (_Handler,), {"hub": served})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True) for server in servers
    ]

    def stop() -> None:
        for server, thread in zip(servers, threads, strict=True):
            if thread.is_alive():
                server.shutdown()
                server.server_close()
                thread.join()

    for thread in threads:
        thread.start()
    served.endpoint, served.elsewhere = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    served.stop = stop
    constants, cache = huggingface_hub.constants, tmp_path / "cache"
    monkeypatch.setattr(constants, "ENDPOINT", served.endpoint)
    template = served.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield served
    stop()
