"""Energy of timed decodes, from counters of the machine: RAPL for processors, NVML for GPUs; none on others."""
