"""A lake: results of many machines as immutable Parquet files in one folder or bucket, asked like the database.

    ROOT/schema=N/manifests/KIND/NAME.json                                                        what is there
    ROOT/schema=N/table=T/model=M/task=L/method=X/attempt_id=A/SHA256.parquet                     rows, a file a table

Files are written first and the manifest that names them last, each at one stroke, and nothing is written twice: a
reader sees all of an attempt or nothing of it, whoever else writes and whatever is killed. A file that no manifest
names is never opened.
"""
