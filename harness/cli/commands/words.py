"""Human-readable times and sizes."""


def duration(seconds: float) -> str:
    """Return a time for people: ``45 s``, ``12 min 5 s``, ``3 h 20 min``, ``2 d 4 h``."""
    whole = round(seconds)
    for unit, size, below, smaller in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {below}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"


def data_size(size_bytes: float) -> str:
    """Return a size for people, in powers of 1000."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= size:
            return f"{size_bytes / size:.3g} {unit}"
    return f"{size_bytes:.0f} bytes"
