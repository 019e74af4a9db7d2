"""The DuckDB database: connection, views and comments, access, a sandbox for third-party files.

* There are no migrations. A database, snapshot, lake or spool with another `SCHEMA_VERSION` is refused, and
  `exitbench db rebuild` builds the database again from its spool.
* If a database has this version's tables but other views, the next command that writes replaces the views. Until then,
  commands that only read refuse the database.
* A writer leaves a mark next to the database (`.exitbench.duckdb.verified`: version, inode, size, times), so readers
  need not compare every view and macro. The mark counts only if both files belong to the reading user and no other user
  may write them.
* `db check` reads every column, and every index that a query reads.
* If runs differ only in the version of method or engine, or in the cells they depend on, `frontier` has only the
  newest. The other views have all runs.
* Rows of `document_exit` and `document_probe` are derived from new rows of `token_exit` and `probe_token`, and are
  added together with them.

Every metric has a role: `headline`, `task` and `agreement` are scores; the others are `depth`, `cost`, `speed`,
`energy`, `format` (effect of the number format), `preparation` (fits and calibrations) and `data` (documents and
prompts left out or cut). Views select by role, so that third-party tasks need no names in SQL. Scores have
`lower_is_better`, which is NULL for other metrics, and a task's scores have the lowest and highest value of their
scale, if it has any. `delta` is value - full_value; `gain` is positive if the value is the better one.

`compare` pairs documents by key, and refuses different sets. Binary metrics are tested by McNemar's exact test. The
test of other metrics exchanges the two outputs of a document: in all ways if at most 16 documents differ, else in
20,000 random ways, drawn with a seed. Holm's correction is over every metric of every run B. The detectable effect is
at 5%, two-sided, 80% power, and at least the smallest difference that the test can find. Speeds are compared only
between runs with one `comparable_id`.
"""
