"""Energy of timed decodes, from counters of the machine: RAPL of the processors, NVML of the GPUs; none elsewhere."""
