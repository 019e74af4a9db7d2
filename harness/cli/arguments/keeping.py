"""Arguments of the commands that maintain and exchange results: db, gc, rescore, annotate, export, import."""

from pathlib import Path

from exitbench.harness.cli.arguments.common import (
    Commands,
    add_data_dir,
    add_database,
    add_plugins,
    add_unsafe_code,
    command,
)


def add_commands(commands: Commands) -> None:
    """Add the commands of this module, with their arguments, to the parser of `exitbench`."""
    _add_db(commands)
    _add_gc(commands)
    _add_rescore(commands)
    _add_annotate(commands)
    _add_export(commands)
    _add_import(commands)


def _add_db(commands: Commands) -> None:
    examples = "  exitbench db check\n  exitbench db rebuild\n  exitbench db rebuild --runs other-runs"
    about = "Check the database row by row, or rebuild it from the spool."
    parser = command(commands, "db", "keeping:db", about, examples)
    actions = (
        "check: compare every file with its digest and every row with its file; "
        "rebuild: anew from the spool, put in place when complete"
    )
    parser.add_argument("action", choices=("check", "rebuild"), help=actions)
    parser.add_argument("--force", action="store_true", help="rebuild even if the spool has less than the database")
    add_database(parser)


def _add_gc(commands: Commands) -> None:
    examples = "  exitbench gc\n  exitbench gc --yes\n  exitbench gc --superseded --spool --yes"
    about = "Show what can be deleted, and delete it with --yes: killed and quarantined attempts, half-written folders."
    parser = command(commands, "gc", "keeping:gc", about, examples)
    superseded = (
        "also attempts that a later attempt at their cell replaced (whole in spool and database), and their rows"
    )
    parser.add_argument("--superseded", action="store_true", help=superseded)
    traces = (
        "also the spool's traces (tokens, probes, scores, timings) of which the database has every row: it cannot "
        "be rebuilt then, and cells that compute from them need them run again"
    )
    parser.add_argument("--spool", action="store_true", help=traces)
    parser.add_argument("--yes", action="store_true", help="delete it")
    add_database(parser)


def _add_rescore(commands: Commands) -> None:
    examples = (
        "  exitbench rescore\n"
        "  exitbench rescore builtin\n"
        "  exitbench rescore 'multi30k-free/multi30k/*' --data-dir ../data"
    )
    about = "Score stored answers again with today's metrics: no model is loaded, old scores stay."
    parser = command(commands, "rescore", "afterwards:rescore_runs", about, examples)
    naming = "suites (name or TOML file), attempt or cell ids, or globs over MODEL/TASK/METHOD; everything without any"
    parser.add_argument("names", nargs="*", metavar="RUN|SUITE", help=naming)
    add_data_dir(parser, "that were answered")
    add_plugins(parser)
    add_unsafe_code(parser)
    add_database(parser)


def _add_annotate(commands: Commands) -> None:
    examples = (
        "  exitbench annotate upos\n"
        "  exitbench annotate upos '*/samsum/*'\n"
        "  exitbench annotate upos 'vanilla/wmt-en-fr/*' --model fr_core_news_sm\n"
        "  exitbench annotate upos --tagger stanza --model en"
    )
    about = "Tag the words of stored answers with parts of speech: by spaCy or Stanza, full depth's answers only."
    parser = command(commands, "annotate", "afterwards:annotate_runs", about, examples)
    parser.add_argument("what", choices=("upos",), help="universal parts of speech, one per token (view token_tags)")
    naming = "attempt or cell ids, or globs over MODEL/TASK/METHOD; every run at full depth without any"
    parser.add_argument("names", nargs="*", metavar="RUN", help=naming)
    parser.add_argument("--tagger", choices=("spacy", "stanza"), help="library (the first that is installed)")
    model_help = "the library's model, in the language of the answers (English: en_core_web_sm, en)"
    parser.add_argument("--model", metavar="NAME", help=model_help)
    add_database(parser)


def _add_export(commands: Commands) -> None:
    examples = (
        "  exitbench export results-2026-03\n"
        "  exitbench export to-colleagues --with-texts\n"
        "  exitbench export records --format every-eval-ever --organization 'Example University'\n"
        "  exitbench export lake /shared/study\n"
        "  exitbench export lake s3://BUCKET/study --with-texts"
    )
    about = (
        "Write the results into a folder to share (Parquet, or records that other tools read), or add them to a lake."
    )
    parser = command(commands, "export", "keeping:export", about, examples)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to write, which must not exist; or: lake")
    about = "of a lake: a folder, or s3://BUCKET/PREFIX, to which attempts that it lacks are added"
    parser.add_argument("lake", nargs="?", metavar="DIR|URL", help=about)
    parser.add_argument(
        "--format",
        choices=("parquet", "every-eval-ever"),
        default="parquet",
        help="one Parquet file a table (parquet), or one JSON record a run in the schema Every Eval Ever",
    )
    parser.add_argument(
        "--with-texts",
        action="store_true",
        help="keep outputs and references of data sets that may be licensed, and what tokens are spelled",
    )
    parser.add_argument("--organization", metavar="NAME", help="of records: who publishes them (default: unknown)")
    parser.add_argument(
        "--relationship",
        choices=("first_party", "third_party", "collaborative", "other"),
        help="of records: how who evaluated relates to who made the models (default: other)",
    )
    add_database(parser)


def _add_import(commands: Commands) -> None:
    examples = (
        "  exitbench import ../other/runs/spool\n"
        "  exitbench import results-2026-03\n"
        "  exitbench import .benchmarks/Linux-CPython-3.11-64bit/0001_perf.json"
    )
    about = "Add results from elsewhere: a spool, a snapshot (a folder written by export), or pytest-benchmark's JSON."
    parser = command(commands, "import", "keeping:import_results", about, examples)
    parser.add_argument(
        "source", type=Path, metavar="SOURCE", help="file or folder; what it is, is recognised by its content"
    )
    add_database(parser)
