"""Tables of timing attempts: raw times, sensor readings of devices, and energy counters."""

from typing import Final

from exitbench.results.tables.declared import ATTEMPT_ID, DOC_KEY, Column, Table

_ROUND: Final = Column("round", "INTEGER", "number of the round, from 0", key=True)
_PLACE: Final = Column("position", "INTEGER", "place in the order of arms, from 0", key=True)
_DOMAIN: Final = Column(
    "domain",
    "VARCHAR",
    "domain of the counter: package-0 (a processor), package-0/dram (its memory), gpu-0, psys (the whole board)",
    key=True,
)

READINGS: Final = (
    Table(
        "timing_sample",
        "One row per document, round, arm and phase of a timing attempt: raw times.",
        (
            ATTEMPT_ID,
            Column("doc_key", "VARCHAR", "key of the document, or of the first of a batch", key=True),
            _ROUND,
            _PLACE,
            Column("arm", "VARCHAR", "method, full (full depth) or twin (full depth again: the noise floor)"),
            Column("twin", "BOOLEAN", "full depth timed again: the noise floor", key=True),
            Column("phase", "VARCHAR", "prefill, decode or total (both)", key=True),
            Column("n_tokens", "INTEGER", "number of tokens of the answer"),
            Column("wall_ns", "BIGINT", "elapsed time"),
            Column("device_ns", "BIGINT", "time on the GPU, by its own clock; NULL if there is none", required=False),
            Column(
                "cpu_ns",
                "BIGINT",
                "processor time of all threads of the process; if it is much less than wall_ns, other processes "
                "used the cores",
            ),
        ),
        file="timings",
        indexed=False,
    ),
    Table(
        "device_sample",
        "One row per device, before and after each round of a timing; NULL if the hardware has no such sensor.",
        (
            ATTEMPT_ID,
            _ROUND,
            Column("moment", "VARCHAR", "phase of the round: its start or end", key=True),
            Column("device", "VARCHAR", "device: cpu or the GPU", key=True),
            Column(
                "clock_mhz",
                "FLOAT",
                "mean clock over cores, or of the GPU's multiprocessors; NULL, like the next columns, if the "
                "hardware has no such sensor",
                required=False,
            ),
            Column("power_w", "FLOAT", "power in watts", required=False),
            Column("temperature_c", "FLOAT", "temperature", required=False),
            Column("throttle", "VARCHAR", "reasons for which the clock is throttled, or none", required=False),
            Column(
                "load_average",
                "FLOAT",
                "load of the machine over the last minute; NULL if the process may use only some of its cores, "
                "because the load counts all of them",
                required=False,
            ),
        ),
        file="device",
        indexed=False,
    ),
    Table(
        "energy_sample",
        "One row per counter of energy, document, round and place in the order of arms: the energy counted around a "
        "timed decode.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            _ROUND,
            _PLACE,
            Column("arm", "VARCHAR", "method, full (full depth) or twin (full depth again)"),
            Column("twin", "BOOLEAN", "full depth timed again: the noise floor", key=True),
            _DOMAIN,
            Column("energy_uj", "BIGINT", "energy in microjoules, gross"),
            Column("wall_ns", "BIGINT", "time between the two readings of the counter"),
        ),
        file="energy",
        indexed=False,
    ),
    Table(
        "energy_domain",
        "One row per counter of energy of a timing.",
        (
            ATTEMPT_ID,
            _DOMAIN,
            Column("is_counted", "BOOLEAN", "it is added to the total; psys is not, since it includes the others"),
            Column("idle_uj", "BIGINT", "energy counted while nothing was decoded"),
            Column("idle_ns", "BIGINT", "duration of that measurement"),
            Column(
                "update_ns",
                "BIGINT",
                "time between two steps of the counter, NULL if it did not change",
                required=False,
            ),
        ),
        file="energy_domains",
        indexed=False,
    ),
)
