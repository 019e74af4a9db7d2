"""Fixtures of a real Slurm with one node and two cores, started for the tests and stopped after them."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DAEMONS = ("munged", "slurmctld", "slurmd")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={port}
SlurmdPort={next_port}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_res
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


Wait = Callable[..., None]


@pytest.fixture(scope="session")
def wait_for() -> Wait:
    """Return a function that waits until a condition holds."""

    def wait(condition: Callable[[], object], limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, "this never came"
            time.sleep(0.05)

    return wait


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory, wait_for: Wait) -> Iterator[Path]:
    """Start the daemons, which commands find by SLURM_CONF, and yield the folder of their logs."""
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: apt-get install --no-install-recommends slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("only root can start the daemons of Slurm")
    root = tmp_path_factory.mktemp("slurm")
    for name in ("munge", "state", "spool", "logs"):
        (root / name).mkdir(mode=0o755)
    key = root / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    host, port = socket.gethostname().split(".")[0], 20_000 + os.getpid() % 10_000 * 2
    (root / "slurm.conf").write_text(CONFIGURATION.format(host=host, root=root, port=port, next_port=port + 1))
    munge = [f"--{name}={root}/munge/{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    commands = (
        ["munged", "--foreground", "--force", f"--key-file={key}", "--num-threads=2", *munge],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-c"],
    )
    os.environ["SLURM_CONF"] = str(root / "slurm.conf")
    daemons = []
    try:
        for command in commands:
            log = (root / "logs" / command[0]).open("w")
            daemons.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
            wait_for((root / "munge" / "socket").exists)
        wait_for(lambda: "idle" in subprocess.run(["sinfo", "-h"], capture_output=True, text=True).stdout)
        yield root / "logs"
    finally:
        subprocess.run(["scancel", "--me", "--signal=KILL", "--full"], capture_output=True)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
        del os.environ["SLURM_CONF"]
