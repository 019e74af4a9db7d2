"""Energy of timed decodes, from the machine's counters: RAPL for processors, NVML for GPUs, none for other hardware."""
