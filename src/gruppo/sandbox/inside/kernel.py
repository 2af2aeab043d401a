"""What the kernel offers and Python does not: namespaces, mounts, Landlock, capabilities. By ctypes, on Linux."""

import ctypes
import os
import struct
from collections.abc import Iterable

libc = ctypes.CDLL(None, use_errno=True)

NEW_NAMESPACES = 0x10000000 | 0x20000000 | 0x00020000 | 0x40000000 | 0x08000000 | 0x04000000  # user pid mnt net ipc uts
NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000

READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2

# Landlock's rights on files.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, MAKE_SYM, REFER, TRUNCATE = 16, 32, 128, 256, 4096, 8192, 16384
ALL_OF_3, IOCTL_DEV = (1 << 15) - 1, 1 << 15  # version 3 knows fifteen rights
OWN = READ_FILE | READ_DIR | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
LANDLOCK = 3  # the first version that knows truncation


class Refused(Exception):
    """The kernel does not do what isolation requires."""


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise Refused(f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, *values: int, what: str = "prctl") -> int:
    given = [ctypes.c_ulong(v) for v in (*values, 0, 0, 0, 0)[:4]]
    return _checked(libc.prctl(option, *given), what)


def die_with_parent() -> None:
    prctl(1, 9)


def no_new_privileges() -> None:
    prctl(38, 1, what="no_new_privs")


def adopt_orphans() -> None:
    prctl(36, 1, what="child subreaper")


def dumpable() -> None:
    """After a change of user, so that the files of this process in /proc belong to that user."""
    prctl(4, 1)


def unshare(flags: int) -> None:
    _checked(libc.unshare(flags), "namespaces (unshare)")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    given = [s.encode() or None for s in (source, target, kind)]
    _checked(libc.mount(*given, ctypes.c_ulong(flags), data.encode() or None), f"mount of {kind or source} at {target}")


def bind(source: str, target: str) -> None:
    """The folder or file, read-only. A flag that the mount has, such as noexec, cannot be taken from it."""
    mount(source, target, "", BIND)
    kept = os.statvfs(target).f_flag & (NO_SUID | NO_DEV | NO_EXEC | 1024 | 2048 | 4096)
    times = (1024 if kept & 1024 else 0) | (2048 if kept & 2048 else 0) | ((1 << 21) if kept & 4096 else 0)
    mount("", target, "", BIND | REMOUNT | READ_ONLY | NO_SUID | (kept & NO_DEV) | (kept & NO_EXEC) | times)


def pivot(root: str) -> None:
    """`root`, a mount, becomes /; what was there is gone."""
    os.chdir(root)
    _checked(libc.syscall(ctypes.c_long(_pivot_number()), b".", b"."), "pivot_root")
    _checked(libc.umount2(b".", DETACH), "umount of the old root")
    os.chdir("/")


def _pivot_number() -> int:
    return 155 if os.uname().machine == "x86_64" else 41


def drop_capabilities() -> None:
    for capability in range(64):
        libc.prctl(24, ctypes.c_ulong(capability), 0, 0, 0)  # from the bounding set; fails without CAP_SETPCAP
    libc.prctl(47, 4, 0, 0, 0)  # ambient ones
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    _checked(libc.capset(header, ctypes.create_string_buffer(24)), "dropping capabilities")


def landlock_version() -> int:
    """0 if the kernel has no Landlock."""
    return max(0, libc.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def landlock(rights: Iterable[tuple[str, int]], version: int) -> int:
    """A list of rights under paths, for `restrict`; its descriptor."""
    handled = ALL_OF_3 | (IOCTL_DEV if version >= 5 else 0)
    fields = [handled, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]  # files; TCP; sockets, signals
    attribute = struct.pack(f"{len(fields)}Q", *fields)
    made = libc.syscall(ctypes.c_long(444), attribute, ctypes.c_size_t(len(attribute)), ctypes.c_uint(0))
    rules = _checked(made, "Landlock")
    for path, allowed in rights:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed & handled, fd)
        _checked(libc.syscall(ctypes.c_long(445), rules, 1, rule, ctypes.c_uint(0)), f"Landlock: a rule for {path}")
        os.close(fd)
    return rules


def restrict(rules: int) -> None:
    """From here on this process has these rights and no others. What it had lost before it does not get back."""
    _checked(libc.syscall(ctypes.c_long(446), rules, ctypes.c_uint(0)), "Landlock: restrict")
