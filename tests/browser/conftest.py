"""A report's page in a real browser. Any error on its console, or a script that fails, fails the test that saw it."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.reports.render import write_report
from exitbench.results.beside.vocabularies import record_vocabulary
from exitbench.results.ingest.ingest import ingest

HOSTILE = ("</script><script>alert(1)</script>", "w" * 10_000, "\u202eevil\u0000\u001b[31m", " \n", "שלום")
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 documents by 10 methods on 24 blocks, tokens that mean harm, and a small model that was never trained."""
    folder = tmp_path_factory.mktemp("browser")
    maker = _maker("large")
    maker.DOCUMENTS, maker.TOKENS, maker.VOCABULARY = 200, 40, 32_000
    maker.KINDS, maker.MODELS = maker.KINDS * 8, (maker.Model("deep", "causal", 24, 0),)
    levels = (0.2, 0.3, 0.4, 0.6, 0.8, 0.9)
    maker.CALM = tuple(
        maker.Method("calm-softmax", {"threshold": level, "min_exit": 1, "decay": "none"}) for level in levels
    )
    for name in ("_write_timing", "_write_replay", "_write_troubles", "_write_fit", "_write_calibration"):
        setattr(maker, name, lambda *_: None)
    texts = [HOSTILE[n // 97 % 5] + str(n) if n % 97 == 0 else f"{' ' * (n % 3 > 0)}w{n}" for n in range(32_000)]
    full = maker.cell_json(maker.MODELS[0], maker.TASKS[0], maker.FULL, "quality")
    record_vocabulary(folder / "spool", full["model"]["tokenizer_sha256"], [t.replace(" ", "▁") for t in texts], ())
    maker.make_spool(folder / "spool")
    small = _maker("small")
    small.MODELS = small.MODELS[1:]
    small._fixed_clock = nullcontext  # attempts of the other maker have the ids that its clock gives
    write = small.AttemptWriter
    small.AttemptWriter = lambda root, cell, env: write(root, {**cell, "random_weights": True}, env)
    small.make_spool(folder / "spool")
    ingest(folder / "spool", folder / "exitbench.duckdb")
    return folder / "exitbench.duckdb"


def _maker(name: str) -> ModuleType:
    """The maker of example spools, for one task."""
    path = Path(__file__).parents[1] / "results" / "make_spool.py"
    spec = importlib.util.spec_from_file_location(f"make_{name}_spool", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.TASKS, module.N_BOOT = module.TASKS[:1], 2
    return module


@pytest.fixture(scope="session")
def page_url(database: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the report of `database` lies."""
    return write_report(database, tmp_path_factory.mktemp("page"), draft=True).index_html.as_uri()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless browser that is on this machine."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if not found:
        pytest.skip(f"no browser: none of {', '.join(names)} is on the PATH, and CHROMIUM names none")
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=options)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any, page_url: str) -> Iterator[Open]:
    """Open a page: width, light or dark, what stands behind # in its address, and the address of another page."""
    contexts, errors = [], []

    def opened(
        width: int = 1600, scheme: str = "light", fragment: str = "#documents", address: str = page_url, **options: Any
    ) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: None if _local(request.url) else errors.append(request.url))
        page.goto(address + fragment)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


def _local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:"))
