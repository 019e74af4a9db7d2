"""Raw times, readings of devices and counters of energy of timings."""

from typing import Final

from exitbench.results.tables.declared import ATTEMPT_ID, DOC_KEY, Column, Table

_ROUND: Final = Column("round", "INTEGER", "from 0", key=True)
_PLACE: Final = Column("position", "INTEGER", "place in the order of arms, from 0", key=True)
_DOMAIN: Final = Column(
    "domain",
    "VARCHAR",
    "what is counted: package-0 (a processor), package-0/dram (its memory), gpu-0, psys (the whole board)",
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
            Column("arm", "VARCHAR", "method, full (full depth) or twin (full depth once more: the noise floor)"),
            Column("twin", "BOOLEAN", "the second time that the round decodes full depth: the noise floor", key=True),
            Column("phase", "VARCHAR", "prefill, decode or total (both)", key=True),
            Column("n_tokens", "INTEGER", "tokens of the answer"),
            Column("wall_ns", "BIGINT", "time that passed"),
            Column(
                "device_ns", "BIGINT", "time on the GPU, by its own clock; NULL where there is none", required=False
            ),
            Column(
                "cpu_ns",
                "BIGINT",
                "processor time of all threads of the process; where it is much less than wall_ns, other processes "
                "held the cores",
            ),
        ),
        file="timings",
        indexed=False,
    ),
    Table(
        "device_sample",
        "One row per device, before and after each round of a timing; NULL where the hardware does not tell.",
        (
            ATTEMPT_ID,
            _ROUND,
            Column("moment", "VARCHAR", "start or end of the round", key=True),
            Column("device", "VARCHAR", "cpu or the GPU", key=True),
            Column(
                "clock_mhz",
                "FLOAT",
                "mean over cores, or of the GPU's multiprocessors; NULL like the others where the hardware does not "
                "tell",
                required=False,
            ),
            Column("power_w", "FLOAT", "power drawn", required=False),
            Column("temperature_c", "FLOAT", "temperature", required=False),
            Column("throttle", "VARCHAR", "what holds the clock down, or none", required=False),
            Column(
                "load_average",
                "FLOAT",
                "of the machine over the last minute; NULL where the process may use only some of its cores, since "
                "it is of all",
                required=False,
            ),
        ),
        file="device",
        indexed=False,
    ),
    Table(
        "energy_sample",
        "One row per counter of energy, document, round and place in the order of arms: what it counted around a "
        "timed decode.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            _ROUND,
            _PLACE,
            Column("arm", "VARCHAR", "method, full (full depth) or twin (full depth once more)"),
            Column("twin", "BOOLEAN", "the second time that the round decodes full depth", key=True),
            _DOMAIN,
            Column("energy_uj", "BIGINT", "microjoules, gross"),
            Column("wall_ns", "BIGINT", "between the two readings of the counter"),
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
            Column("is_counted", "BOOLEAN", "it is added to the others; psys is not, since it holds them"),
            Column("idle_uj", "BIGINT", "what it counted while nothing was decoded"),
            Column("idle_ns", "BIGINT", "in how long"),
            Column(
                "update_ns",
                "BIGINT",
                "how long it stands still between two steps, NULL where it did not move",
                required=False,
            ),
        ),
        file="energy_domains",
        indexed=False,
    ),
)
