"""Advisory locks of open files, shared or exclusive, released on process death.

For what filelock has nothing: readers that share, and a locked file whose text others read. Its own lock of readers and
writers is an SQLite database, and to import it takes as long as the whole of ``exitbench --help``.
"""

import sys

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _KERNEL32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _AT_ONCE, _EXCLUSIVE, _HELD_BY_ANOTHER = 1, 2, 33

    class _Overlapped(ctypes.Structure):
        _fields_ = (
            ("internal", ctypes.c_void_p),
            ("internal_high", ctypes.c_void_p),
            ("offset", wintypes.DWORD),
            ("offset_high", wintypes.DWORD),
            ("event", wintypes.HANDLE),
        )

    def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
        """Lock an open file until it is closed; False where another holds it and `wait` is not asked for."""
        handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
        flags = (0 if shared else _EXCLUSIVE) | (0 if wait else _AT_ONCE)
        place = _Overlapped(offset_high=1)  # one byte far behind the text, which nobody else could read beneath a lock
        if _KERNEL32.LockFileEx(handle, flags, 0, 1, 0, ctypes.byref(place)):
            return True
        if (error := ctypes.get_last_error()) == _HELD_BY_ANOTHER:
            return False
        raise ctypes.WinError(error)

else:
    import fcntl

    def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
        """Lock an open file until it is closed; False where another holds it and `wait` is not asked for.

        Raises:
            OSError: The file system has no locks.
        """
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True
