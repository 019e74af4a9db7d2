"""Fetching a model: requests to the hub, messages after failures, and what is found later without a network."""

from __future__ import annotations

import json
import os
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import huggingface_hub.file_download
import pytest

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints import hub as hub_module
from exitbench.harness.engine.checkpoints.digest import inspect_checkpoint
from exitbench.harness.engine.checkpoints.hub import HubName, fetch, find, locate, read_name
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.reading import hub_responses

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

NAME = "somebody/tiny-llama"
MODEL = HubName(NAME)
FIRST, SECOND = "1" * 40, "2" * 40
INDEX = "model.safetensors.index.json"


def silent(_: str) -> None:
    pass


def shards(files: dict[str, bytes]) -> list[str]:
    return sorted(set(json.loads(files[INDEX])["weight_map"].values()))


# ------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("written", "repository", "revision"),
    [
        ("hub:somebody/tiny-llama", NAME, "main"),
        ("hub:somebody/tiny-llama@v1", NAME, "v1"),
        ("hub:somebody/tiny-llama@refs/pr/4", NAME, "refs/pr/4"),
        (f"hub:a.b/c_d.e@{FIRST}", "a.b/c_d.e", FIRST),
    ],
)
def test_hub_names_parse_into_repository_and_revision(written: str, repository: str, revision: str) -> None:
    assert read_name(written) == HubName(repository, revision)
    assert read_name(str(HubName(repository, revision))) == HubName(repository, revision)


@pytest.mark.parametrize("written", ["models/hub:x/y", "../hub", "HUB:a/b", "hub/a"])
def test_paths_without_the_hub_prefix_are_folders(written: str) -> None:
    assert read_name(written) is None
    assert locate(written, query_hub=True, say=silent).folder == Path(written)


@pytest.mark.parametrize(
    "written",
    [
        "hub:",
        "hub:tiny",
        "hub:/tiny",
        "hub:a/b/c",
        "hub:a/../b",
        "hub:../b",
        "hub:a/..",
        "hub:a--b/c",
        "hub:a/b@",
        "hub:a/b@../../x",
        "hub:a/b@/x",
        "hub:a/b@x@y",
        "hub:a/b@x/",
        "hub:a/b\n",
        "hub:https://huggingface.co/a/b",
        "hub:" + "x" * 5000,
    ],
)
def test_invalid_hub_name_is_refused_with_the_allowed_forms(written: str) -> None:
    with pytest.raises(UserError, match="allowed: hub:OWNER/NAME or hub:OWNER/NAME@REVISION") as refused:
        read_name(written)
    assert len(str(refused.value)) < 300


# ------------------------------------------------------------------------------------------- what is asked for


def test_only_files_that_the_engines_read_are_requested(hub: Any, published: dict[str, bytes], tmp_path: Path) -> None:
    said: list[str] = []
    located = fetch(MODEL, said.append)
    assert hub.requested == set(published)
    assert {path.name: path.read_bytes() for path in located.folder.iterdir()} == published
    assert len(shards(published)) > 2
    wanted = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert hub.requested == {*wanted, INDEX, *shards(published)}
    assert located.source == f"hub:{NAME}@{FIRST}"
    assert said[1].startswith(f"Fetching {len(shards(published))} files, ") and said[1].endswith(located.source)
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and tmp_path / "cache" not in path.parents]
    assert outside == []


def test_fetched_checkpoints_load_on_both_engines_without_running_their_code(hub: Any, tmp_path: Path) -> None:
    folder = fetch(MODEL, silent).folder
    assert "auto_map" in json.loads((folder / "config.json").read_text())
    rows = {engine: load_checkpoint(folder, engine=engine) for engine in ("lean", "hosted")}
    description = inspect_checkpoint("tiny", folder)
    assert {loaded.model.vocab_size for loaded in rows.values()} == {description.vocab_size}
    assert {len(loaded.eos_ids) for loaded in rows.values()} == {2}
    assert not any(name.endswith((".py", ".bin", ".pt")) for name in hub.requested)
    assert not (tmp_path / "RAN").exists()


def test_single_file_weights_request_no_index_and_no_shards(hub: Any, published: dict[str, bytes]) -> None:
    hub.files["model.safetensors"] = hub.files[shards(published)[0]]
    hub.files["exit_heads.safetensors"] = b"of trained heads"
    fetch(MODEL, silent)
    weights = {name for name in hub.requested if "safetensors" in name}
    assert weights == {"model.safetensors", "exit_heads.safetensors"}


def test_all_files_of_legacy_tokenizers_are_requested(hub: Any, published: dict[str, bytes]) -> None:
    old = (
        "vocab.json",
        "vocab[1].json",
        "merges.txt",
        "added_tokens.json",
        "special_tokens_map.json",
        "spiece.model",
        "source.spm",
    )
    hub.files.update(dict.fromkeys(old, b"{}"))
    fetch(MODEL, silent)
    assert hub.requested == {*published, *old}


# ------------------------------------------------------------------------------------------- revisions and the cache


@pytest.mark.parametrize("revision", ["main", "v1", "refs/pr/4", FIRST])
def test_revision_resolves_to_a_commit(hub: Any, revision: str) -> None:
    name = HubName(NAME, revision)
    assert find(name) is None
    located = fetch(name, silent)
    assert located == find(name) == find(HubName(NAME, FIRST))
    assert (located.source, located.folder.name) == (f"hub:{NAME}@{FIRST}", FIRST)


def test_branch_is_updated_only_by_a_fetch(hub: Any) -> None:
    before = fetch(MODEL, silent)
    hub.refs["main"] = SECOND
    assert find(MODEL) == before
    after = fetch(MODEL, silent)
    assert (before.source, after.source) == (f"hub:{NAME}@{FIRST}", f"hub:{NAME}@{SECOND}")
    assert find(MODEL) == after
    assert find(HubName(NAME, FIRST)) == before


def test_cached_files_are_not_downloaded_again(hub: Any) -> None:
    fetch(MODEL, silent)
    hub.asked.clear()
    said: list[str] = []
    fetch(MODEL, said.append)
    assert (hub.requested, said) == (set(), [])
    hub.asked.clear()
    fetch(HubName(NAME, FIRST), said.append)  # a commit does not change
    assert (hub.asked, said) == ([], [])


def test_hub_is_not_contacted_without_query_hub(hub: Any) -> None:
    assert find(MODEL) is None
    with pytest.raises(UserError, match=f"hub:{NAME}@main is not on this machine, or not whole.*--hub"):
        locate(f"hub:{NAME}", query_hub=False, say=silent)
    located = locate(f"hub:{NAME}", query_hub=True, say=silent)
    asked = list(hub.asked)
    assert locate(f"hub:{NAME}", query_hub=False, say=silent) == located
    assert hub.asked == asked


@pytest.mark.parametrize("what", ["config.json", "generation_config.json", "tokenizer.json", "weights"])
def test_incomplete_cache_counts_as_missing_and_a_fetch_completes_it(
    hub: Any, published: dict[str, bytes], what: str
) -> None:
    located = fetch(MODEL, silent)
    gone = located.folder / (shards(published)[1] if what == "weights" else what)
    gone.resolve().unlink()  # the link stays, and leads nowhere
    assert find(MODEL) is None
    hub.asked.clear()
    assert fetch(MODEL, silent) == find(MODEL) == located
    assert hub.requested == {gone.name}


def test_cache_without_a_file_listing_is_used_with_a_remark(hub: Any) -> None:
    located = fetch(MODEL, silent)
    (listing,) = (located.folder.parents[1] / "trees").iterdir()
    listing.unlink()
    huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE.clear()
    result = find(MODEL)
    assert result is not None and result.folder == located.folder
    (remark,) = result.remarks
    assert "does not say which files the repository has" in remark
    assert fetch(HubName(NAME, FIRST), silent) == located


def test_inspection_of_a_copied_snapshot_equals_that_of_the_cached_one(hub: Any, tmp_path: Path) -> None:
    folder = fetch(MODEL, silent).folder
    assert all(path.is_symlink() for path in folder.iterdir())
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    assert not any(path.is_symlink() for path in copied.iterdir())
    assert inspect_checkpoint("tiny", copied) == inspect_checkpoint("tiny", folder)


# ------------------------------------------------------------------------------------------- failures


def refused(says: str, name: HubName = MODEL) -> str:
    with pytest.raises(UserError, match=says) as error:
        fetch(name, silent)
    message = str(error.value)
    assert message.startswith(str(name)) or name.repository in message
    assert len(message) < 900 and message.count("\n") == 0
    assert find(name) is None
    return message


def test_gated_model_error_explains_access_and_a_token_allows_the_fetch(
    hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated = True
    message = refused("access is restricted. Accept its terms on")
    assert f"{hub.endpoint}/{NAME}" in message and "hf auth login" in message and "HF_TOKEN" in message
    monkeypatch.setenv("HF_TOKEN", "hf_let_me_in")
    assert fetch(MODEL, silent) == find(MODEL)
    assert any("/cdn/" in path for _, path in hub.asked) and hub.tokens_elsewhere == []


def test_unknown_model_is_refused(hub: Any) -> None:
    refused("has no such model, or it is private", HubName("nobody/nothing"))


def test_unknown_revision_is_refused(hub: Any) -> None:
    refused("no such revision; allowed: a branch, a tag or a commit", HubName(NAME, "v7"))
    refused("no such revision", HubName(NAME, "7" * 40))


def test_unreachable_hub_is_reported(hub: Any) -> None:
    hub.stop()
    message = refused("could not be fetched from http://127.0.0.1")
    assert "without --hub the cache on this machine is read alone" in message


def test_unreachable_hub_is_reported_for_cached_branches_but_not_for_cached_commits(hub: Any) -> None:
    located = fetch(MODEL, silent)
    hub.stop()
    with pytest.raises(UserError, match="could not be fetched from"):
        fetch(MODEL, silent)
    assert fetch(HubName(NAME, FIRST), silent) == find(MODEL) == located


def test_hf_hub_offline_setting_is_reported(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    refused("HF_HUB_OFFLINE is set, so the hub is not queried; unset it")


@pytest.fixture
def no_retry_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub retry without waiting."""
    time = huggingface_hub.file_download.time
    unhurried = types.SimpleNamespace(**{**vars(time), "sleep": lambda _: None})
    monkeypatch.setattr(huggingface_hub.file_download, "time", unhurried)


def test_interrupted_download_resumes_where_it_stopped(
    hub: Any, published: dict[str, bytes], no_retry_wait: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = shards(published)[1]
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1)  # what is kept of what was sent
    hub.cut[part] = False
    folder = fetch(MODEL, silent).folder
    assert hub.ranges == [f"bytes={len(published[part]) // 2}-"]
    assert (folder / part).read_bytes() == published[part]


def test_failed_download_leaves_no_partial_file_in_the_snapshot(
    hub: Any, published: dict[str, bytes], no_retry_wait: None
) -> None:
    part = shards(published)[1]
    hub.cut[part] = True
    message = refused("What has come is kept, and the same command goes on")
    assert "could not be fetched from" in message
    snapshots = Path(huggingface_hub.constants.HF_HUB_CACHE).rglob(f"snapshots/*/{part}")
    assert list(snapshots) == []
    hub.cut.clear()
    folder = fetch(MODEL, silent).folder
    assert (folder / part).read_bytes() == published[part]


def edited(name: str, change: Callable[[Any], object]) -> Callable[[dict[str, bytes]], object]:
    def edit(files: dict[str, bytes]) -> None:
        content = json.loads(files[name])
        change(content)
        files[name] = json.dumps(content).encode()

    return edit


def without(*endings: str) -> Callable[[dict[str, bytes]], object]:
    return lambda files: [files.pop(name) for name in list(files) if name.endswith(endings)]


USELESS: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "no configuration": (without("config.json"), "no config.json in the repository"),
    "pickles only": (without(".safetensors", INDEX), "found model.gguf, optimizer.pt, pytorch_model.bin"),
    "no tokenizer": (without("tokenizer.json", "tokenizer_config.json"), "no tokenizer files"),
    "quantised": (
        edited("config.json", lambda config: config.update(quantization_config={"quant_method": "gptq"})),
        "quantised weights are not supported",
    ),
    "a part elsewhere": (
        edited(INDEX, lambda index: index["weight_map"].update(ghost="../model.safetensors")),
        "weight_map says '../model.safetensors' for 'ghost'",
    ),
    "a part by its full path": (
        edited(INDEX, lambda index: index["weight_map"].update(ghost="/etc/passwd.safetensors")),
        "weight_map says '/etc/passwd.safetensors'",
    ),
    "a part that is a pickle": (
        edited(INDEX, lambda index: index["weight_map"].update(ghost="pytorch_model.bin")),
        "weight_map says 'pytorch_model.bin'",
    ),
    "a part that is not there": (
        edited(INDEX, lambda index: index["weight_map"].update(ghost="gone.safetensors")),
        "no gone.safetensors in",
    ),
}


@pytest.mark.parametrize("what", USELESS)
def test_unusable_repositories_are_refused_before_weights_are_requested(hub: Any, tmp_path: Path, what: str) -> None:
    change, says = USELESS[what]
    change(hub.files)
    with pytest.raises(UserError, match=says):
        fetch(MODEL, silent)
    if what != "a part that is not there":
        assert not any(name.endswith((".safetensors", ".bin")) for name in hub.requested)
    assert not list(tmp_path.glob("*.safetensors")) and not (tmp_path / "RAN").exists()


@pytest.mark.parametrize("commit", ["../../../evil", "main", "", None, "1" * 39, "1" * 40 + "\n"])
def test_invalid_commit_is_refused_and_creates_no_folder(hub: Any, tmp_path: Path, commit: str | None) -> None:
    hub.answers["sha"] = commit
    with pytest.raises(UserError, match="which is not a commit"):
        fetch(MODEL, silent)
    assert not (tmp_path / "cache").exists() and not list(tmp_path.rglob("evil*"))


ESCAPES = ("../../../../pwned", "/{folder}/pwned", "..", "a/b", "a\\b", "")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("file", ["config.json", "model-00001-of-00005.safetensors"])
@pytest.mark.parametrize("header", ["ETag", "X-Linked-Etag", "X-Repo-Commit"])
@pytest.mark.parametrize("value", ESCAPES)
def test_invalid_response_headers_create_no_file_outside_the_cache(
    hub: Any, tmp_path: Path, file: str, header: str, value: str
) -> None:
    if file.endswith(".safetensors"):
        file = shards(hub.files)[0]
    before = set(tmp_path.rglob("*"))
    value = value.format(folder=tmp_path)
    hub.headers[file] = {header: f'"{value}"' if header != "X-Repo-Commit" else value}
    with pytest.raises(UserError, match=r"which is (no digest|not a commit)"):
        fetch(MODEL, silent)
    result = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(tmp_path / "cache") and "pwned" not in path.name for path in result)
    assert find(MODEL) is None


@pytest.mark.parametrize("value", [*ESCAPES, 5, None])
def test_invalid_digest_in_a_listing_is_refused_before_any_file_is_requested(hub: Any, value: object) -> None:
    name = shards(hub.files)[0]
    hub.listing[name] = {"lfs": {"oid": value, "size": 5, "pointerSize": 130}, "xetHash": "a" * 64}
    with pytest.raises(UserError, match="in a listing, which is not a digest"):
        fetch(MODEL, silent)
    assert not hub.requested


@pytest.mark.parametrize("size", [-1, 0.5, True, "5", "1" * 5000])
def test_invalid_file_size_is_refused_before_any_file_is_requested(hub: Any, size: object) -> None:
    hub.answers["siblings"] = [{"rfilename": name, "size": size} for name in hub.files]
    with pytest.raises(UserError, match="the hub answers with a size of "):
        fetch(MODEL, silent)
    assert not hub.requested


def test_model_larger_than_the_free_disk_is_refused_before_any_file_is_requested(hub: Any) -> None:
    hub.answers["siblings"] = [{"rfilename": name, "size": 10**18} for name in hub.files]
    with pytest.raises(UserError, match=r"do not fit on the disk of the hub's cache \(.*\), where .* GB are free"):
        fetch(MODEL, silent)
    assert not hub.requested


@pytest.mark.parametrize("header", ["Content-Length", "X-Linked-Size"])
@pytest.mark.parametrize("size", ["-5", "1" + "0" * 18, "1e3", "9" * 5000])
def test_invalid_or_excessive_size_header_is_refused(hub: Any, header: str, size: str) -> None:
    hub.headers["config.json"] = {header: size}
    with pytest.raises(UserError, match=r"a size of .* bytes; at most|could not be fetched"):
        fetch(MODEL, silent)
    assert find(MODEL) is None


def test_listing_with_too_many_files_is_refused_before_any_file_is_requested(hub: Any) -> None:
    hub.answers["siblings"] = [{"rfilename": f"{index}.json", "size": 1} for index in range(100_000)]
    with pytest.raises(UserError, match="lists 100000 files; a model has at most 10000"):
        fetch(MODEL, silent)
    assert not hub.requested


def test_oversized_hub_response_is_refused_before_any_file_is_requested(
    hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_responses, "_API_BYTES", 1 << 20)
    hub.answers["description"] = "x" * (2 << 20)
    with pytest.raises(UserError, match="more than 1 MiB about its files"):
        fetch(MODEL, silent)
    assert not hub.requested


def test_fetching_restores_the_event_hooks_of_huggingface_hub(hub: Any) -> None:
    before = huggingface_hub.get_session().event_hooks
    fetch(MODEL, silent)
    assert huggingface_hub.get_session().event_hooks == before


def test_non_regular_file_in_the_cache_is_reported(hub: Any) -> None:
    located = fetch(MODEL, silent)
    path = located.folder / "generation_config.json"
    path.unlink()
    os.mkfifo(path)
    assert find(MODEL) is None
    with pytest.raises(UserError, match=r"no generation_config\.json in .* something that is no file lies there"):
        fetch(MODEL, silent)


def test_full_disk_raises_the_operating_systems_error(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "blobs/x.incomplete")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(OSError, match="No space left"):
        fetch(MODEL, silent)
    assert hub_module.find(MODEL) is None
