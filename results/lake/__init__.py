"""Lake: results of many machines as Delta Lake tables in one directory or bucket, queried like the database.

    ROOT/schema=N/token_exit/attempt_id=A/part-....parquet    one Delta table per table of the database

Each exporter appends the rows of an attempt to every table, and last to `attempt`. A reader takes the attempts listed
there first and ignores rows of all others, so an attempt is visible as a whole or not at all.
"""

from exitbench.errors import UserError

try:
    import deltalake as deltalake
except ImportError as missing:
    raise UserError(f"A lake needs deltalake: `pip install 'exitbench[lake]'` ({missing}).") from None
