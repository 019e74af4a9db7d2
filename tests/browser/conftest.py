"""Fixtures of a report's page in a real browser. An error on its console or in a script fails the test."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.reports.render import write_report
from exitbench.results.side_records.vocabularies import record_vocabulary

sys.path.insert(0, str(Path(__file__).parent))  # for the module `measure`

HOSTILE = ("</script><script>alert(1)</script>", "w" * 10_000, "\u202eevil\u0000\u001b[31m", " \n", "שלום")
Open = Callable[..., Any]
NAMES = (
    *(
        "</script><script>window.alerted = 1; alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "--><svg onload=alert(1)>",
    ),
    *("</style><base href='x'>", "\" onmouseover='alert(1)' x=\"", "{{ 7 * 7 }}{% raw %}", "../../etc/passwd"),
)


@pytest.fixture(scope="session")
def database(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database: 200 documents, 20 methods, 24 blocks, hostile tokens, and a small untrained model."""
    folder = tmp_path_factory.mktemp("browser")
    levels = [n / 20 for n in range(2, 18)]
    usual = {"min_exit": 1, "decay": "none"}
    one_task = replace(example.WORLD, tasks=example.TASKS[:1], n_boot=2)
    large = replace(
        one_task,
        documents=200,
        tokens=40,
        vocabulary=32_000,
        kinds=example.KINDS * 8,
        models=(example.Model("deep", "causal", 24, 0),),
        swept=tuple(example.Method("calm-softmax", {"threshold": level, **usual}) for level in levels),
        omitted_kinds=frozenset({"timing", "replay", "failures", "fit", "calibration"}),
    )
    texts = [HOSTILE[n // 97 % 5] + str(n) if n % 97 == 0 else f"{' ' * (n % 3 > 0)}w{n}" for n in range(32_000)]
    full = large.cell(large.models[0], large.tasks[0], example.FULL, "quality")
    record_vocabulary(folder / "spool", full["model"]["tokenizer_sha256"], [t.replace(" ", "▁") for t in texts], ())
    large.write(folder / "spool")
    untrained = replace(one_task, models=example.MODELS[1:], random_weights=True, fixed_clock=False)
    untrained.write(folder / "spool")
    return Path(example.ingested(folder))


@pytest.fixture(scope="session")
def page_url(database: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of the report of `database`."""
    return write_report(database, tmp_path_factory.mktemp("page"), draft=True).index_html.as_uri()


@pytest.fixture(scope="session")
def example_page(example_database: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of the example's report: two models on three tasks, timed and replayed."""
    return write_report(example_database, tmp_path_factory.mktemp("example"), draft=True).index_html.as_uri()


@pytest.fixture(scope="session")
def hostile_page(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a report on a model and a task with hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    models = (replace(example.MODELS[1], name="".join(NAMES)),)
    tasks = (replace(example.TASKS[0], label="".join(NAMES[::-1])),)
    database = replace(example.WORLD, models=models, tasks=tasks, n_boot=2).make_database(folder)
    return write_report(database, folder / "report", draft=True).index_html.as_uri()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Yield a headless browser installed on this machine."""
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
    """Yield a function that opens a page, given width, theme, URL fragment, and optionally another page's URL."""
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
        if options.get("java_script_enabled", True):
            # charts are drawn once they have a size, which is within the first frame
            page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


def _local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:"))
