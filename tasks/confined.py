"""The two processes that score a program: one runs it, the other runs its tests and decides. A script of its own.

The program is in one process, the tests and the pass token are in another, so that nothing the program does to its own
interpreter decides. The tests' names that the program defines stand for questions to it: a call sends plain values and
receives plain values (`encode`, `decode`), which are then compared where the program is not. Anything else stays with
the program, and the tests hold a handle of it.

`unsafe_code.py` starts both with `python -I -S confined.py solution|judge`, in namespaces of their own.
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
"""Modules that the tests get as they are, where the program has imported them."""

# ----------------------------------------------------------------------------------------------- what is kept away

_NEW_NAMESPACE_BITS: Final = 0x7E02_0000  # CLONE_NEWUSER and its like
_ERRNO: Final = 0x0005_0000  # SECCOMP_RET_ERRNO
_ALLOW: Final = 0x7FFF_0000
_KILL: Final = 0x8000_0000
_MOUNT_SETATTR: Final = 442  # as all calls since 2019, of the same number everywhere
_READ_ONLY, _RECURSIVE = 1, 0x8000
_NOSUID_NODEV_NOEXEC: Final = 2 | 4 | 8
_FORBIDDEN_EVERYWHERE: Final = (425, 426, 427, 428, 429, 430, 431, 432, 433, 435, 438, 442)
"""io_uring, open_tree to fspick, clone3 (whose flags are out of sight), pidfd_getfd, mount_setattr."""
_FORBIDDEN: Final = {  # architecture, clone, then: socket, mount, umount2, unshare, setns, ptrace,
    # process_vm_readv, process_vm_writev, bpf, keyctl, pivot_root, chroot, memfd_create
    "x86_64": (0xC000003E, 56, (41, 165, 166, 272, 308, 101, 310, 311, 321, 250, 155, 161, 319)),
    "aarch64": (0xC00000B7, 220, (198, 40, 39, 97, 268, 117, 270, 271, 280, 219, 41, 51, 279)),
}
_X32_BIT: Final = 0x4000_0000


def confine(limits: dict[str, int], disk_bytes: int) -> None:
    """Keep this process, for good, from writing anywhere but into a small file system of its own, and from sockets.

    Args:
        limits: Of `resource`, by their names.
        disk_bytes: What the working folder may hold; every other folder is read-only, and /proc is empty.

    Raises:
        OSError: This system does not allow it.
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
    """Refuse sockets, mounts, namespaces and other processes' memory, with EPERM, by a seccomp filter."""
    architecture, clone, own_calls = _FORBIDDEN[platform.machine()]
    calls = (*own_calls, *_FORBIDDEN_EVERYWHERE)
    load, equal, at_least, has_bits, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    refusal = len(calls) + 9  # the last line; a jump counts the lines that it passes over
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
    """Return a value as JSON has it; of a subclass of a plain type, its content as that type.

    Args:
        value: Anything.
        hold: Called with what is not plain; returns its number.
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


def decode(message: Any, held: Any) -> Any:
    """Return what `encode` was given.

    Args:
        message: What `encode` returned.
        held: Called with the number of what is not plain; returns what stands for it.
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
            return [decode(item, held) for item in content]
        case "tuple":
            return tuple(decode(item, held) for item in content)
        case "set":
            return {decode(item, held) for item in content}
        case "frozenset":
            return frozenset(decode(item, held) for item in content)
        case "dict":
            return {decode(key, held): decode(item, held) for key, item in content}
        case "held":
            return held(content)
    raise ValueError(kind)


class Channel:
    """Messages to and from the other process, one per line."""

    def __init__(self, receiving: int, sending: int) -> None:
        self._receiving: BinaryIO = os.fdopen(receiving, "rb")
        self._sending: BinaryIO = os.fdopen(sending, "wb")

    def send(self, message: Any) -> None:
        """Send one message."""
        self._sending.write(json.dumps(message).encode("ascii") + b"\n")
        self._sending.flush()

    def receive(self) -> Any:
        """Wait for one message.

        Raises:
            EOFError: The other process has ended, or the message is too long.
        """
        line = self._receiving.readline(_MESSAGE_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError
        return json.loads(line)


# --------------------------------------------------------------------------------------------------- the two processes


def serve(program: str, channel: Channel) -> NoReturn:
    """Run a program, then answer what the tests ask of it. Everything here is in the program's hands."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, "<model>", "exec"), scope)
    things: list[Any] = []

    def hold(thing: Any) -> int:
        things.append(thing)
        return len(things) - 1

    while True:
        asked, number, *content = channel.receive()
        thing: Any = things[number] if number is not None else None
        try:
            if asked == "name":
                if content[0] not in scope:
                    channel.send({"missing": True})
                    continue
                thing = scope[content[0]]
                if isinstance(thing, type(os)):  # a module
                    channel.send({"module": thing.__name__})
                    continue
            elif asked == "call":
                given, named = (decode(part, things.__getitem__) for part in content)
                thing = thing(*given, **named)
            elif asked == "attribute":
                thing = getattr(thing, content[0])
            elif asked == "item":
                thing = thing[decode(content[0], things.__getitem__)]
            elif asked == "items":
                thing = [item for item, _ in zip(thing, range(_ITEMS), strict=False)]
            elif asked == "next":
                thing = next(thing)
            elif asked == "length":
                thing = len(thing)
            elif asked == "truth":
                thing = bool(thing)
            channel.send({"value": encode(thing, hold)})
        except Exception as error:
            channel.send({"error": type(error).__name__})


class Proxy:
    """What the tests hold of something that stays in the program's process. It equals nothing but itself."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.__dict__.update(channel=channel, number=number)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the program's object with plain values, and return the plain value it answers."""
        return _ask(self.channel, "call", self.number, encode(list(given), _number), encode(named, _number))

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
    """The number of what the program is given back."""
    if isinstance(thing, Proxy):
        number: int = thing.__dict__["number"]
        return number
    raise TypeError(f"{type(thing).__name__} cannot be given to the program")


def _ask(channel: Channel, asked: str, number: int | None, *content: Any) -> Any:
    channel.send([asked, number, *content])
    return _value(channel, channel.receive())


def _value(channel: Channel, answer: Any) -> Any:
    if "error" not in answer:
        return decode(answer["value"], lambda held: Proxy(channel, held))
    kind = getattr(builtins, str(answer["error"]), None)
    raise kind() if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError


def judge(tests: str, channel: Channel) -> None:
    """Run the tests, to which the program's names stand for questions to its process.

    A built-in function is the program's own only if the tests name nothing else of the program's: a program is asked
    for `sum` where `sum` is what it had to write, and not where the tests compare by it.

    Raises:
        Exception: A test failed, or the program has ended.
    """
    tree = ast.parse(tests)
    names = sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
    scope: dict[str, Any] = {"__name__": "__main__"}
    own = [name for name in names if not hasattr(builtins, name)]
    if not _take_names(own, channel, scope):
        _take_names([name for name in names if name not in own], channel, scope)
    channel.send(["name", None, ""])
    channel.receive()  # the program has come to its end
    exec(compile(tree, "<tests>", "exec"), scope)


def _take_names(names: list[str], channel: Channel, scope: dict[str, Any]) -> bool:
    """Take names that the program defines into the tests' scope; return whether any is no module of `_MODULES`."""
    taken = False
    for name in names:
        channel.send(["name", None, name])
        answer = channel.receive()
        if "module" in answer and answer["module"] in _MODULES:
            scope[name] = importlib.import_module(answer["module"])
        elif "value" in answer:
            scope[name] = _value(channel, answer)
            taken = True
    return taken


def main() -> None:
    """Do one of the two, or only try whether a process can be confined."""
    given = json.load(sys.stdin)
    confine(given["limits"], given["disk_bytes"])
    if sys.argv[1] == "try":
        return
    channel = Channel(given["receive"], given["send"])
    if sys.argv[1] == "solution":
        serve(given["program"], channel)
    judge(given["tests"], channel)
    os.write(given["descriptor"], given["token"].encode())


if __name__ == "__main__":
    main()
