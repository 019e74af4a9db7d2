"""Stand-alone script that tests a program written by a model: one process runs the program, another runs the tests.

The program runs in one process. Another process runs the tests and has the secret token that reports success, so
nothing that the program does to its own interpreter can decide the result. In the tests, names that the program defines
are proxies: a call sends plain values and receives plain values (`encode`, `decode`), which are compared in the tests'
process. Any other object stays in the program's process, and the tests hold a handle to it.

`unsafe_code.py` starts both with `python -I -S confined.py solution|judge`, in separate namespaces.
"""

import ast
import builtins
import collections.abc
import ctypes
import importlib
import json
import os
import platform
import resource
import struct
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any, BinaryIO, Final, NoReturn

_MESSAGE_BYTES: Final = 1 << 24
_ITEMS: Final = 100_000
_MODULES: Final = frozenset(
    [
        "bisect",
        "cmath",
        "collections",
        "copy",
        "datetime",
        "decimal",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "math",
        "operator",
        "re",
        "statistics",
        "string",
    ]
)
"""Modules that the tests import themselves if the program has imported them."""

# ----------------------------------------------------------------------------------------------- what is kept away

_NEW_NAMESPACE_BITS: Final = 0x7E02_0000  # CLONE_NEWUSER and the other CLONE_NEW* flags
_ERRNO: Final = 0x0005_0000  # SECCOMP_RET_ERRNO
_ALLOW: Final = 0x7FFF_0000
_KILL: Final = 0x8000_0000
_MOUNT_SETATTR: Final = 442  # like all system calls since 2019, the same number on every architecture
_READ_ONLY, _RECURSIVE = 1, 0x8000
_NOSUID_NODEV_NOEXEC: Final = 2 | 4 | 8
_FORBIDDEN_EVERYWHERE: Final = (425, 426, 427, 428, 429, 430, 431, 432, 433, 435, 438, 442)
"""io_uring, open_tree to fspick, clone3 (a filter cannot read its flags), pidfd_getfd, mount_setattr."""
_FORBIDDEN: Final = {  # architecture, clone, then: socket, mount, umount2, unshare, setns, ptrace,
    # process_vm_readv, process_vm_writev, bpf, keyctl, pivot_root, chroot, memfd_create
    "x86_64": (0xC000003E, 56, (41, 165, 166, 272, 308, 101, 310, 311, 321, 250, 155, 161, 319)),
    "aarch64": (0xC00000B7, 220, (198, 40, 39, 97, 268, 117, 270, 271, 280, 219, 41, 51, 279)),
}
_X32_BIT: Final = 0x4000_0000


def confine(limits: dict[str, int], disk_bytes: int) -> None:
    """Confine this process permanently: it can write only to a small private file system, and open no sockets.

    Args:
        limits: Resource limits, by names of constants of `resource`, such as `RLIMIT_CPU`.
        disk_bytes: Size of the working folder. Every other folder is read-only, and /proc is empty.

    Raises:
        OSError: This system does not support the confinement.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = struct.pack("QQQQ", _READ_ONLY, 0, 0, 0)
    _check(libc.syscall(_MOUNT_SETATTR, -100, b"/", _RECURSIVE, attributes, len(attributes)))
    folder = os.getcwd().encode()
    options = f"size={disk_bytes},nr_inodes=1000".encode()
    _check(libc.mount(b"tmpfs", folder, b"tmpfs", _NOSUID_NODEV_NOEXEC, options))
    _check(libc.mount(b"tmpfs", b"/proc", b"tmpfs", _NOSUID_NODEV_NOEXEC | _READ_ONLY, b"size=4k"))
    os.chdir(folder)
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    _forbid_calls(libc)


def _forbid_calls(libc: ctypes.CDLL) -> None:
    """Install a seccomp filter: sockets, mounts, namespaces and access to other processes' memory fail with EPERM."""
    architecture, clone, own_calls = _FORBIDDEN[platform.machine()]
    calls = (*own_calls, *_FORBIDDEN_EVERYWHERE)
    load, equal, at_least, has_bits, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    refusal = len(calls) + 9  # the index of the last line; a jump counts the lines that it skips
    lines = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (answer, 0, 0, _KILL),
        (load, 0, 0, 0),
        (at_least, refusal - 5, 0, _X32_BIT),
        *((equal, refusal - line - 1, 0, call) for line, call in enumerate(calls, start=5)),
        (equal, 0, 2, clone),
        (load, 0, 0, 16),
        (has_bits, 1, 0, _NEW_NAMESPACE_BITS),
        (answer, 0, 0, _ALLOW),
        (answer, 0, 0, _ERRNO | 1),
    ]
    program = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(program)
    filter_ = struct.pack("HP", len(lines), ctypes.addressof(buffer))
    _check(libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    _check(libc.prctl(22, 2, filter_, 0, 0))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# ------------------------------------------------------------------------------------------------------ plain values


def encode(value: Any, hold: Any) -> Any:
    """Return a value as JSON data that `decode` can restore; a subclass of a plain type is encoded as that type.

    Args:
        value: Any object.
        hold: Function called with an object that is not plain data; stores the object and returns its handle number.
    """
    match value:
        case None | bool() | str():
            return value if value is None or isinstance(value, bool) else str.__str__(value)
        case int():
            return {"int": hex(value)}
        case float():
            return {"float": float.hex(value)}
        case complex():
            return {"complex": [float.hex(value.real), float.hex(value.imag)]}
        case bytes():
            return {"bytes": value.hex()}
        case Decimal():
            return {"decimal": str(value)}
        case Fraction():
            return {"fraction": [hex(value.numerator), hex(value.denominator)]}
        case range():
            return {"range": [hex(value.start), hex(value.stop), hex(value.step)]}
        case list():
            return {"list": [encode(item, hold) for item in value]}
        case tuple():
            return {"tuple": [encode(item, hold) for item in value]}
        case set():
            return {"set": [encode(item, hold) for item in value]}
        case collections.abc.Set():  # frozenset, and the keys of a dictionary
            return {"frozenset": [encode(item, hold) for item in value]}
        case dict():
            return {"dict": [[encode(key, hold), encode(item, hold)] for key, item in value.items()]}
        case _:
            return {"held": hold(value)}


def decode(message: Any, resolve: Any) -> Any:
    """Return the value that `encode` encoded as JSON data.

    Args:
        message: Result of `encode`.
        resolve: Function from the number of a handle to the object that it stands for.
    """
    if not isinstance(message, dict):
        return message
    ((kind, content),) = message.items()
    match kind:
        case "int":
            return int(content, 16)
        case "float":
            return float.fromhex(content)
        case "complex":
            return complex(*map(float.fromhex, content))
        case "bytes":
            return bytes.fromhex(content)
        case "decimal":
            return Decimal(content)
        case "fraction":
            return Fraction(*(int(part, 16) for part in content))
        case "range":
            return range(*(int(part, 16) for part in content))
        case "list":
            return [decode(item, resolve) for item in content]
        case "tuple":
            return tuple(decode(item, resolve) for item in content)
        case "set":
            return {decode(item, resolve) for item in content}
        case "frozenset":
            return frozenset(decode(item, resolve) for item in content)
        case "dict":
            return {decode(key, resolve): decode(item, resolve) for key, item in content}
        case "held":
            return resolve(content)
    raise ValueError(kind)


class Channel:
    """Connection to the other process through two pipes, with one JSON message per line."""

    def __init__(self, receiving: int, sending: int) -> None:
        self._receiving: BinaryIO = os.fdopen(receiving, "rb")
        self._sending: BinaryIO = os.fdopen(sending, "wb")

    def send(self, message: Any) -> None:
        """Send one JSON message."""
        self._sending.write(json.dumps(message).encode("ascii") + b"\n")
        self._sending.flush()

    def receive(self) -> Any:
        """Wait for one JSON message and return it.

        Raises:
            EOFError: The other process has ended, or the message is too long.
        """
        line = self._receiving.readline(_MESSAGE_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError
        return json.loads(line)


# --------------------------------------------------------------------------------------------------- the two processes


def serve(program: str, channel: Channel) -> NoReturn:
    """Run a program written by a model (source text), then answer requests from the tests' process over `channel`.

    Requests are for names of the program, calls, attributes and items. The loop ends with `EOFError` when the tests
    have ended. The program may have changed anything in this process.
    """
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, "<model>", "exec"), scope)
    things: list[Any] = []

    def hold(thing: Any) -> int:
        things.append(thing)
        return len(things) - 1

    while True:
        request, number, *content = channel.receive()
        thing: Any = things[number] if number is not None else None
        try:
            if request == "name":
                if content[0] not in scope:
                    channel.send({"missing": True})
                    continue
                thing = scope[content[0]]
                if isinstance(thing, type(os)):  # a module
                    channel.send({"module": thing.__name__})
                    continue
            elif request == "call":
                args, named = (decode(part, things.__getitem__) for part in content)
                thing = thing(*args, **named)
            elif request == "attribute":
                thing = getattr(thing, content[0])
            elif request == "item":
                thing = thing[decode(content[0], things.__getitem__)]
            elif request == "items":
                thing = [item for item, _ in zip(thing, range(_ITEMS), strict=False)]
            elif request == "next":
                thing = next(thing)
            elif request == "length":
                thing = len(thing)
            elif request == "truth":
                thing = bool(thing)
            channel.send({"value": encode(thing, hold)})
        except Exception as error:
            channel.send({"error": type(error).__name__})


class Proxy:
    """Handle, in the tests' process, to an object in the program's process; a proxy equals only itself."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.__dict__.update(channel=channel, number=number)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the object in the program's process; return the result as a plain value or as another proxy."""
        return _ask(self.channel, "call", self.number, encode(list(args), _number), encode(named, _number))

    def __getattr__(self, name: str) -> Any:
        return _ask(self.channel, "attribute", self.number, name)

    def __getitem__(self, key: Any) -> Any:
        return _ask(self.channel, "item", self.number, encode(key, _number))

    def __iter__(self) -> Any:
        return iter(_ask(self.channel, "items", self.number))

    def __next__(self) -> Any:
        return _ask(self.channel, "next", self.number)

    def __len__(self) -> int:
        length: int = _ask(self.channel, "length", self.number)
        return length

    def __bool__(self) -> bool:
        return _ask(self.channel, "truth", self.number) is True


def _number(thing: Any) -> int:
    """Return the handle number of a proxy, so that it can be passed back to the program as an argument."""
    if isinstance(thing, Proxy):
        number: int = thing.__dict__["number"]
        return number
    raise TypeError(f"{type(thing).__name__} cannot be given to the program")


def _ask(channel: Channel, request: str, number: int | None, *content: Any) -> Any:
    channel.send([request, number, *content])
    return _value(channel, channel.receive())


def _value(channel: Channel, answer: Any) -> Any:
    if "error" not in answer:
        return decode(answer["value"], lambda handle: Proxy(channel, handle))
    kind = getattr(builtins, str(answer["error"]), None)
    raise kind() if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError


def judge(tests: str, channel: Channel) -> None:
    """Run the tests (source text); names that the program defines are proxies of objects in the program's process.

    A name such as `sum`, which Python itself defines, is taken from the program only if the tests use no other name of
    the program. So it is the program's `sum` if the program had to implement it, but Python's if the tests use it to
    check another function.

    Raises:
        Exception: A test failed, or the program's process has ended.
    """
    tree = ast.parse(tests)
    names = sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
    scope: dict[str, Any] = {"__name__": "__main__"}
    regular = [name for name in names if not hasattr(builtins, name)]
    if not _take_names(regular, channel, scope):
        _take_names([name for name in names if name not in regular], channel, scope)
    channel.send(["name", None, ""])
    channel.receive()  # the program has run to its end
    exec(compile(tree, "<tests>", "exec"), scope)


def _take_names(names: list[str], channel: Channel, scope: dict[str, Any]) -> bool:
    """Add to the tests' `scope` those of `names` that the program defines; import modules in `_MODULES` instead.

    Return whether a name was taken from the program's process.
    """
    has_value = False
    for name in names:
        channel.send(["name", None, name])
        answer = channel.receive()
        if "module" in answer and answer["module"] in _MODULES:
            scope[name] = importlib.import_module(answer["module"])
        elif "value" in answer:
            scope[name] = _value(channel, answer)
            has_value = True
    return has_value


def main() -> None:
    """Run the program, run the tests, or only check that a process can be confined, as the first argument says.

    The configuration, with the program or the tests, is read from standard input as JSON.
    """
    config = json.load(sys.stdin)
    confine(config["limits"], config["disk_bytes"])
    if sys.argv[1] == "try":
        return
    channel = Channel(config["receive"], config["send"])
    if sys.argv[1] == "solution":
        serve(config["program"], channel)
    judge(config["tests"], channel)
    os.write(config["descriptor"], config["token"].encode())


if __name__ == "__main__":
    main()
