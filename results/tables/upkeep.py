"""Tables that every database creates itself, published results, and benchmarks of ExitBench."""

from typing import Final

from exitbench.results.tables.declared import Column, Table

UPKEEP: Final = (
    Table(
        "schema_version",
        "Of which schema the tables are; one row.",
        (
            Column("version", "INTEGER", "of the tables", key=True),
            Column("applied_at", "TIMESTAMP", "when they were created, UTC"),
            Column("tool", "VARCHAR", "version of ExitBench that created them"),
        ),
        local=True,
    ),
    Table(
        "view_source",
        "Digest of the text that the views were created from; one row.",
        (Column("sha256", "VARCHAR", "of views.sql and the descriptions of columns", key=True),),
        local=True,
    ),
    Table(
        "published_source",
        "Digest of the files that published_result was filled from; one row.",
        (Column("sha256", "VARCHAR", "of the files that published_result is filled from", key=True),),
        local=True,
    ),
    Table(
        "published_result",
        "One row per value that papers and their authors' files printed, as printed, and what of ours compares with "
        "it.",
        (
            Column("published_id", "VARCHAR", "digest of the row", key=True),
            Column("ordinal", "INTEGER", "row of the file"),
            Column("source", "VARCHAR", "where it is printed"),
            Column("figure_or_table", "VARCHAR", "where in it"),
            Column("model", "VARCHAR", "as printed", required=False),
            Column("dataset", "VARCHAR", "as printed", required=False),
            Column("split", "VARCHAR", "as printed", required=False),
            Column("method", "VARCHAR", "as printed", required=False),
            Column("setting", "VARCHAR", "as printed", required=False),
            Column("metric", "VARCHAR", "as printed"),
            Column("value", "DOUBLE", "as printed"),
            Column("std", "DOUBLE", "as printed", required=False),
            Column("unit", "VARCHAR", "as printed", required=False),
            Column("note", "VARCHAR", "caveats of the reading", required=False),
            Column(
                "our_task",
                "VARCHAR",
                "task that a run of ours must have to compare, NULL where none could",
                required=False,
            ),
            Column("our_method", "VARCHAR", "method that it must have", required=False),
            Column("our_params", "JSON", "parameters that it must have, JSON; it may have more", required=False),
            Column("our_metric", "VARCHAR", "metric of ours that is compared", required=False),
            Column("unit_factor", "DOUBLE", "times value gives our scale", required=False),
            Column("caveat", "VARCHAR", "what else differs", required=False),
            Column("model_blocks", "INTEGER", "decoder blocks of their model", required=False),
            Column("model_loss", "VARCHAR", "what their model was trained by", required=False),
            Column("weights_sha256", "VARCHAR", "digest of their weights, where known", required=False),
            Column("data_sha256", "VARCHAR", "digest of their documents, where known", required=False),
            Column(
                "not_comparable", "VARCHAR", "why it compares with nothing of ours, NULL where it does", required=False
            ),
            Column(
                "min_exit_share",
                "DOUBLE",
                "the earliest exit as a share of the blocks, NULL where a setting has none",
                required=False,
            ),
        ),
        local=True,
    ),
    Table(
        "perf_sample",
        "One row per benchmark of ExitBench itself and run of benchmarks, as pytest-benchmark measured it.",
        (
            Column("perf_run_id", "VARCHAR", "digest of the file", key=True, added=True),
            Column("benchmark", "VARCHAR", "file and test", key=True),
            Column("measured_at", "TIMESTAMP", "UTC"),
            Column("git_commit", "VARCHAR", "of the code, NULL outside a repository", required=False),
            Column("git_dirty", "BOOLEAN", "the code differed from the commit", required=False),
            Column("machine", "JSON", "what pytest-benchmark says of it"),
            Column("params", "JSON", "of the test, JSON", required=False),
            Column(
                "extra",
                "JSON",
                "what else was measured, JSON: measured and its unit, its goal as at_least or at_most, and more",
                required=False,
            ),
            Column("median_s", "DOUBLE", "median of the rounds, seconds"),
            Column("data", "DOUBLE[]", "seconds of every round, empty where they were not kept"),
        ),
        arrives_by=("perf_run_id",),
    ),
)
