"""The results can be read where torch is not installed."""

import subprocess
import sys


def test_nothing_in_results_imports_torch() -> None:
    modules = "spool, schema, canonical, catalogue, database, load, ingest, statistics, queries, migrations"
    modules += ", comparison, rescores, snapshot, merge, every_eval_ever"
    script = f"import sys; from exitbench.results import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
