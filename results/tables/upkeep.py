"""Tables that every database creates itself, published results, and benchmarks of ExitBench."""

from typing import Final

from exitbench.results.tables.declared import Column, Table

UPKEEP: Final = (
    Table(
        "schema_version",
        "Version of the tables' schema; one row.",
        (
            Column("version", "INTEGER", "version of the tables", key=True),
            Column("applied_at", "TIMESTAMP", "when they were created, UTC"),
            Column("tool", "VARCHAR", "version of ExitBench that created them"),
        ),
        local=True,
    ),
    Table(
        "view_source",
        "Digest of what the views, comments and stored differences were created by; one row.",
        (
            Column(
                "sha256",
                "VARCHAR",
                "digest of views.sql, the descriptions of columns, and the version of the differences",
                key=True,
            ),
        ),
        local=True,
    ),
    Table(
        "published_source",
        "Digest of the files that published_result was filled from; one row.",
        (Column("sha256", "VARCHAR", "digest of the files that published_result is filled from", key=True),),
        local=True,
    ),
    Table(
        "published_result",
        "One row per value printed in papers and their authors' files, as printed, and the run of ours that is "
        "comparable.",
        (
            Column("published_id", "VARCHAR", "digest of the row", key=True),
            Column("ordinal", "INTEGER", "number of the row in the file"),
            Column("source", "VARCHAR", "paper or file"),
            Column("figure_or_table", "VARCHAR", "figure or table"),
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
                "task that a comparable run must have, NULL if none can be comparable",
                required=False,
            ),
            Column("our_method", "VARCHAR", "method that a comparable run must have", required=False),
            Column(
                "our_params",
                "JSON",
                "parameters that a comparable run must have, JSON; it may have more",
                required=False,
            ),
            Column("our_metric", "VARCHAR", "metric of our run that is compared", required=False),
            Column("unit_factor", "DOUBLE", "factor from value to our scale", required=False),
            Column("caveat", "VARCHAR", "other differences", required=False),
            Column("model_blocks", "INTEGER", "number of decoder blocks of their model", required=False),
            Column("model_loss", "VARCHAR", "training of their model", required=False),
            Column("weights_sha256", "VARCHAR", "digest of their weights, if known", required=False),
            Column("data_sha256", "VARCHAR", "digest of their documents, if known", required=False),
            Column(
                "not_comparable",
                "VARCHAR",
                "reason why no run of ours is comparable, NULL if one can be",
                required=False,
            ),
            Column(
                "min_exit_share",
                "DOUBLE",
                "earliest exit as a share of the blocks, NULL if the setting has none",
                required=False,
            ),
        ),
        local=True,
    ),
    Table(
        "perf_sample",
        "One row per run and benchmark of ExitBench itself, as measured by pytest-benchmark.",
        (
            Column("perf_run_id", "VARCHAR", "digest of the file", key=True, added=True),
            Column("benchmark", "VARCHAR", "file and test", key=True),
            Column("measured_at", "TIMESTAMP", "time of measurement, UTC"),
            Column("git_commit", "VARCHAR", "git commit of the code, NULL outside a repository", required=False),
            Column("git_dirty", "BOOLEAN", "the code differed from the commit", required=False),
            Column("machine", "JSON", "machine as described by pytest-benchmark, JSON"),
            Column("params", "JSON", "parameters of the test, JSON", required=False),
            Column(
                "extra",
                "JSON",
                "other measured values, JSON: measured with its unit, its goal as at_least or at_most, and more",
                required=False,
            ),
            Column("median_s", "DOUBLE", "median of the rounds, seconds"),
            Column("data", "DOUBLE[]", "seconds of every round, empty if they were not stored"),
        ),
        import_key=("perf_run_id",),
    ),
)
