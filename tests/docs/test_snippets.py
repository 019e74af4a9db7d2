"""Runner of the guides' code blocks: correct blocks pass, and every difference fails with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentences import sentences, words_of
from snippets import Page, PageMismatch, begins_with


def run(folder: Path, text: str) -> Page:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    runner = Page(page, folder)
    runner.run()
    return runner


def block(language: str, *lines: str, before: str = "") -> str:
    return "\n".join([before, f"```{language}", *lines, "```", ""])


def test_command_with_its_exact_output_passes(tmp_path: Path) -> None:
    run(tmp_path, block("console", "$ python -c \"print('a'); print('b')\"", "a", "b"))


@pytest.mark.parametrize(
    "expected_lines", [("a", "c"), ("a",), ("b",), ("a", "b", "c"), ("b", "a"), ("...", "a"), ("b", "...")]
)
def test_command_with_other_output_fails(tmp_path: Path, expected_lines: tuple[str, ...]) -> None:
    with pytest.raises(PageMismatch, match=r"page\.md:2.*shown, but not so"):
        run(tmp_path, block("console", "$ python -c \"print('a'); print('b')\"", *expected_lines))


@pytest.mark.parametrize(
    "expected_lines", [("1", "..."), ("...", "4"), ("...", "2", "..."), ("1", "...", "3", "4"), ("...",)]
)
def test_ellipsis_matches_any_lines(tmp_path: Path, expected_lines: tuple[str, ...]) -> None:
    run(tmp_path, block("console", "$ python -c \"print('1\\n2\\n3\\n4')\"", *expected_lines))


def test_ellipsis_requires_order_and_adjacency_of_lines(tmp_path: Path) -> None:
    for expected_lines in (("...", "3", "...", "2", "..."), ("...", "2", "4")):
        with pytest.raises(PageMismatch, match="shown, but not so"):
            run(tmp_path, block("console", "$ python -c \"print('1\\n2\\n3\\n4')\"", *expected_lines))


def test_command_with_nonzero_exit_code_fails(tmp_path: Path) -> None:
    with pytest.raises(PageMismatch, match="ends with 2, not 0"):
        run(tmp_path, block("console", "$ exitbench show"))


def test_stated_exit_code_is_checked(tmp_path: Path) -> None:
    command = '$ python -c "raise SystemExit(2)"'
    run(tmp_path, block("console", command, "# exit code 2"))
    with pytest.raises(PageMismatch, match="ends with 2, not 1"):
        run(tmp_path, block("console", command, "# exit code 1"))


def test_console_block_supports_line_continuation_and_several_commands(tmp_path: Path) -> None:
    run(tmp_path, block("console", "$ python \\", "    -c 'print(1)'", "1", "$ python -c 'print(2)'  # two", "2"))


@pytest.mark.parametrize("command", ["exitbench list suites | head", "no-such-program", "python -V > version.txt"])
def test_shell_syntax_and_unknown_programs_fail(tmp_path: Path, command: str) -> None:
    with pytest.raises(PageMismatch, match=r"needs a shell|there is no program"):
        run(tmp_path, block("console", f"$ {command}"))


def test_times_digests_dates_and_paths_may_differ_but_other_numbers_may_not(tmp_path: Path) -> None:
    text = "it took 3.5 s, 1.7x, deadbeef01, 2026-01-02 in /home/me, 5 documents"
    (tmp_path / "said.txt").write_text(text + "\n")
    run(tmp_path, block("console", "$ cat said.txt", "it took 12 s, 2x, abcdef0123, 2025-12-31 in /a/b/c, 5 documents"))
    with pytest.raises(PageMismatch, match="shown, but not so"):
        run(tmp_path, block("console", "$ cat said.txt", text.replace("5 documents", "6 documents")))


def test_numbers_vary_remark_allows_other_numbers_but_not_other_words(tmp_path: Path) -> None:
    command = "$ python -c \"print('speed  1.71\\n-----')\""
    run(tmp_path, block("console", command, "speed 12", "--", before="<!-- numbers vary -->"))
    with pytest.raises(PageMismatch, match="shown, but not so"):
        run(tmp_path, block("console", command, "speed 12", "--"))
    with pytest.raises(PageMismatch, match="shown, but not so"):
        run(tmp_path, block("console", command, "sped 12", "--", before="<!-- numbers vary -->"))


def test_python_blocks_of_a_page_share_a_namespace_and_their_output_is_checked(tmp_path: Path) -> None:
    text = block("python", "a = 1") + block("python", "print(a + 1)")
    run(tmp_path, text + block("text", "2"))
    with pytest.raises(PageMismatch, match=r"page\.md:10.*shown, but not so"):
        run(tmp_path, text + block("text", "3"))


def test_python_block_that_raises_or_exits_fails(tmp_path: Path) -> None:
    for code, message in (("1 / 0", "ZeroDivisionError"), ("import os; os._exit(0)", "the interpreter has ended")):
        with pytest.raises(PageMismatch, match=rf"page\.md:2: (?s:.*){message}"):
            run(tmp_path, block("python", code))


def test_sql_block_is_run_and_must_return_rows(tmp_path: Path, few_database: Path) -> None:
    (tmp_path / "runs").symlink_to(few_database.parent)
    query = "SELECT DISTINCT task FROM runs WHERE task = 'squad'"
    run(tmp_path, block("sql", query) + block("text", "task", "-----", "squad"))
    with pytest.raises(PageMismatch, match="shown, but not so"):
        run(tmp_path, block("sql", query) + block("text", "task", "-----", "samsum"))
    with pytest.raises(PageMismatch, match="has no rows"):
        run(tmp_path, block("sql", "SELECT task FROM runs WHERE task = 'none'"))


def test_block_with_a_title_is_written_to_that_file(tmp_path: Path) -> None:
    run(tmp_path, block('toml title="a/my.toml"', "x = 1") + block("console", "$ cat a/my.toml", "x = 1"))
    with pytest.raises(PageMismatch, match="outside the page's folder"):
        run(tmp_path, block('toml title="../my.toml"', "x = 1"))


def test_skipped_block_needs_a_known_reason_and_is_counted(tmp_path: Path) -> None:
    page = run(tmp_path, block("console", "$ sbatch job", before="<!-- not run: a cluster -->"))
    assert page.not_run == ["page.md:2: a cluster"]
    with pytest.raises(PageMismatch, match="'no time' is none of"):
        run(tmp_path, block("console", "$ sbatch job", before="<!-- not run: no time -->"))


def test_remark_applies_only_directly_before_its_block(tmp_path: Path) -> None:
    with pytest.raises(PageMismatch, match="there is no program"):
        run(tmp_path, "<!-- not run: a cluster -->\n\nBut:\n" + block("console", "$ no-such-program"))


@pytest.mark.parametrize("language", ["", "bash", "toml", "text"])
def test_block_of_a_language_without_a_runner_fails(tmp_path: Path, language: str) -> None:
    with pytest.raises(PageMismatch, match="neither run nor"):
        run(tmp_path, block(language, "anything"))


def test_malformed_block_fails(tmp_path: Path) -> None:
    for text in ("    ```console\n    ```", "```console title=x\n```", "```console\n$ ls\n", "~~~\n~~~"):
        with pytest.raises(PageMismatch, match=r"page\.md:1"):
            run(tmp_path, text)


def test_page_declares_the_initial_contents_of_its_folder(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begins with: runs of builtin, checkpoints -->\n# Title\n")
    assert begins_with(page) == ["runs of builtin", "checkpoints"]


def test_sentences_of_prose_and_list_items_are_found_with_line_numbers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading. Not one.\n\nFirst sentence\nover two lines. Second, e.g. this one.\n\n| a table. | b |\n\n"
        "```text\ncode. Code.\n```\n\n1. An item.\n   It goes on\n2. Another [with a link](a/b.md) and `much code`\n"
    )
    assert [(line, words_of(sentence), sentence.split()[0]) for line, sentence in sentences(page)] == [
        (3, 5, "First"),
        (4, 4, "Second,"),
        (12, 2, "An"),
        (13, 3, "It"),
        (14, 6, "Another"),
    ]
