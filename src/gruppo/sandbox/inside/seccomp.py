"""The seccomp filter of a program: a list of what is allowed, as a BPF program for the kernel.

Written here because libseccomp is a shared library that many machines lack, and the zygote runs without packages.
"""

import ctypes
import errno
import os
import platform
import struct

from calls import AARCH64, CONDITIONED, MODES, X86_64
from kernel import Refused, prctl

MACHINES = {"x86_64": (0xC000003E, X86_64), "aarch64": (0xC00000B7, AARCH64)}

LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
DENY, UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
NUMBER, ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
X32 = 0x40000000  # the numbers of x86_64's second table begin here

THREAD = 0x00010000
NAMESPACES = 0x7E020000  # all CLONE_NEW… flags of clone
PRCTL = (15, 16, 0x53564D41)  # set and get a thread's name; name a piece of memory
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # terminal? its size, bytes to read, non-blocking, on exec
SHARED_ANONYMOUS = 0x21  # flags of mmap
FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)  # duplicates, flags, locks; no owner of signals
Code = list[tuple[int, int, int, int]]


def install(processes: int, modes: bool) -> None:
    """From here on, for this process and all it starts. `modes`: it may change modes and times of files."""
    try:
        architecture, table = MACHINES[platform.machine()]
    except KeyError:
        raise Refused(f"there is no list of system calls for {platform.machine()}") from None
    code = assembled(architecture, table, processes, modes)
    raw = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(raw)))
    prctl(22, 2, ctypes.addressof(program), what="seccomp")


def assembled(architecture: int, table: dict[str, int], processes: int, modes: bool) -> Code:
    code: Code = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), ret(KILL), (LOAD, 0, 0, NUMBER)]
    if table is X86_64:
        code += [(AT_LEAST, 0, 1, X32), ret(DENY)]
    for name, number in table.items():
        if name not in CONDITIONED and (modes or name not in MODES):
            code += [(EQUAL, 0, 1, number), ret(ALLOW)]
    for name, block in conditions(processes).items():
        if name in table:
            code += [(EQUAL, 0, len(block), table[name]), *block]
    return [*code, ret(DENY)]


def conditions(processes: int) -> dict[str, Code]:
    """Blocks that end in a return, for calls whose arguments matter."""
    own = os.getpid()
    several = processes > 1  # only in a pid namespace, where signals reach nobody else
    return {
        "clone": masked(0, NAMESPACES | (0 if several else THREAD), 0 if several else THREAD),
        "clone3": [ret(UNKNOWN)],  # its flags are in memory, out of reach; libc then uses clone
        "fork": [ret(ALLOW if several else DENY)],
        "vfork": [ret(ALLOW if several else DENY)],
        "kill": [ret(ALLOW)] if several else among(0, (own,)),
        "tgkill": [ret(ALLOW)] if several else among(0, (own,)),
        # Of such a mapping all pages but one can be unmapped, and stay where no limit counts them.
        "mmap": [argument(3), (AND, 0, 0, SHARED_ANONYMOUS), (EQUAL, 0, 1, SHARED_ANONYMOUS), ret(DENY), ret(ALLOW)],
        "prlimit64": among(0, (0, own)),
        "prctl": among(0, PRCTL),
        "ioctl": among(1, IOCTL),
        "fcntl": among(1, FCNTL),
        # A pair of streams, which asyncio needs, has no address and cannot get one.
        "socketpair": [argument(0), (EQUAL, 1, 0, 1), ret(DENY), *masked(1, 0xF, 1)],
        "sendto": [argument(4), (EQUAL, 1, 0, 0), ret(DENY), *among(4, (0,), high=True)],
    }


def ret(action: int) -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, action)


def argument(index: int, high: bool = False) -> tuple[int, int, int, int]:
    """Loads half of an argument; the kernel itself reads the lower half of an int."""
    return (LOAD, 0, 0, 16 + 8 * index + 4 * high)


def among(index: int, values: tuple[int, ...], high: bool = False) -> Code:
    tests = [one for value in values for one in ((EQUAL, 0, 1, value), ret(ALLOW))]
    return [argument(index, high), *tests, ret(DENY)]


def masked(index: int, mask: int, value: int) -> Code:
    return [argument(index), (AND, 0, 0, mask), (EQUAL, 0, 1, value), ret(ALLOW), ret(DENY)]
