"""The DuckDB database: connection, views and comments, access, a sandbox for third-party files.

* There are no migrations. A database, snapshot, lake or spool with another `SCHEMA_VERSION` is refused, and
  `exitbench db rebuild` builds the database again from its spool.
* A database with these tables and other views gets today's views from the next command that writes. Commands that only
  read refuse it until then.
* A writer leaves a mark next to the database (`.exitbench.duckdb.verified`: version, inode, size, times), so readers
  need not compare every view and macro. It counts only if both files are the reader's own and no other user may write
  them.
* `db check` reads every column, and every index that a query reads.
* `frontier` has the newest of runs that differ only in the version of method or engine, or in the cells they depend
  on. The other views have all runs.
* `document_exit` and `document_probe` are derived: whatever adds rows to `token_exit` or `probe_token` adds theirs.

Every metric has a role: `headline`, `task` and `agreement` are scores; the others are `depth`, `cost`, `speed`,
`energy`, `format` (effect of the number format), `preparation` (fits and calibrations) and `data` (documents and
prompts left out or cut). Views select by role, so that third-party tasks need no names in SQL. Scores have
`lower_is_better`, which is NULL for other metrics, and a task's scores have the ends of their scale, if there are any.
`delta` is value - full_value; `gain` is positive if the value is the better one.

`compare` pairs documents by key, and refuses different sets. All-or-nothing metrics are tested by McNemar's exact test,
any other by exchanging the two outputs of a document: all exchanges up to 16 documents that differ, else 20,000 drawn
with a seed. Holm's correction is over every metric of every run B. The detectable effect is at 5%, two-sided, 80%
power, and never less than the test can find. Speeds are compared only between runs with one `comparable_id`.
"""
