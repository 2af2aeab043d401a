"""The two isolations. Each is prepared once in the zygote, entered for each program, and locked in its process."""

import math
import os
import resource
import shutil
import sys
import sysconfig
import tempfile
from typing import Any

import kernel
import seccomp
import usage

USER = 64321  # what root becomes; an ordinary user stays who they are
LOOK, LOOK_AT_MEMORY = 0.02, 0.01  # seconds between two looks at what the kernel does not limit
SCRATCH = "/scratch"
SCRATCH_MB = 64  # all files of a program together, and so each of them
FILES = 4096  # their number
DESCRIPTORS = 64
THREADS = 32
DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")  # a shared mapping of zero would be memory that nothing counts
PACKAGES = ("site-packages", "dist-packages")  # not visible: they may hold the answers to a task


def folders() -> list[str]:
    """Those of the standard library."""
    return list(dict.fromkeys(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")))


def devices() -> list[tuple[str, int]]:
    return [(device, kernel.READ_FILE | kernel.WRITE_FILE) for device in DEVICES]


def readable() -> list[tuple[str, int]]:
    """With Landlock's rights."""
    return [(folder, kernel.READ_FILE | kernel.READ_DIR) for folder in folders()] + devices()


class Jail:
    name = ""
    modes = False  # whether a program may change modes and times of its files
    landlock = 0  # Landlock's version
    alone = ""  # why a program cannot have several processes here; empty: it can
    proc = -1  # the folder /proc, open

    def prepare(self) -> None:
        """In the zygote, once. Raises `Refused`."""

    def enter(self) -> None:
        """In the supervisor of one program."""

    def scratch(self) -> str:
        """In the keeper, which starts the program: the program's folder, empty."""
        raise NotImplementedError

    def pause(self, request: dict[str, Any]) -> float:
        """Seconds between two looks at what the kernel does not limit; 0: it limits everything."""
        return 0.0

    def excess(self, request: dict[str, Any], keeper: int, pids: list[int]) -> tuple[str, str]:
        """In the supervisor, at such a look: how the program must end, and why; empty if it may go on."""
        return "", ""

    def leave(self) -> None:
        """In the supervisor, when the program has ended."""

    def end(self) -> None:
        """In the zygote, when it ends."""

    def lock(self, scratch: str, limits: dict[str, Any], tasks: int) -> None:
        """In the process of the program. `tasks`: the keeper's children."""
        _limit(limits, tasks, self.name == "namespaces")
        kernel.drop_capabilities()
        kernel.die_with_parent()
        kernel.no_new_privileges()
        if self.landlock:
            rules = kernel.landlock([(scratch, kernel.OWN), *readable()], self.landlock)
            kernel.restrict(rules)
            os.close(rules)
        seccomp.install(limits["processes"], self.modes)


class Namespaces(Jail):
    """An own root with the standard library and four devices, read-only; own processes, network, users, memory.

    The zygote moves into that root. A program gets new namespaces below those of the zygote, and an own file system in
    memory as its scratch folder.
    """

    name, modes = "namespaces", True

    def prepare(self) -> None:
        os.chdir(sys.base_prefix)  # a folder that root may enter and USER not, such as one in /root, stays reachable
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            kernel.dumpable()
        self.ids = os.geteuid(), os.getegid()
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        kernel.unshare(kernel.NEW_USER | kernel.NEW_MOUNTS)
        self._map()
        kernel.mount("", "/", "", kernel.PRIVATE | kernel.RECURSIVE)
        root, plain = "/proc", kernel.NO_SUID | kernel.NO_DEV | kernel.NO_EXEC
        kernel.mount("tmpfs", root, "tmpfs", plain, "size=1m,mode=755")
        for folder in folders():
            os.makedirs(root + folder)
            kernel.bind(os.path.relpath(folder, sys.base_prefix), root + folder)
            for hidden in (f"{root}{folder}/{name}" for name in PACKAGES):
                if os.path.isdir(hidden):
                    kernel.mount("tmpfs", hidden, "tmpfs", plain | kernel.READ_ONLY, "size=4k,mode=755")
        os.makedirs(root + "/dev")
        for device in DEVICES:
            os.close(os.open(root + device, os.O_CREAT | os.O_WRONLY))
            kernel.bind(device, root + device)
        os.mkdir(root + SCRATCH)
        kernel.pivot(root)
        kernel.mount("", "/", "", kernel.REMOUNT | kernel.BIND | kernel.READ_ONLY | plain)
        self.landlock = kernel.landlock_version()
        if self.landlock < kernel.LANDLOCK:
            self.landlock = 0
        if why := usage.cannot(self.proc):
            self.alone = f"nothing would sum the memory of its processes ({why})"

    def _map(self) -> None:
        """In the new user namespace the user has the number that they had before, and no other exists."""
        for name, text in (
            ("setgroups", "deny"),
            ("gid_map", f"{self.ids[1]} {self.ids[1]} 1"),
            ("uid_map", f"{self.ids[0]} {self.ids[0]} 1"),
        ):
            fd = os.open(f"self/{name}", os.O_WRONLY, dir_fd=self.proc)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)

    def enter(self) -> None:
        kernel.unshare(kernel.NEW_NAMESPACES)
        self._map()

    def scratch(self) -> str:
        flags = kernel.NO_SUID | kernel.NO_DEV | kernel.NO_EXEC
        kernel.mount("tmpfs", SCRATCH, "tmpfs", flags, f"size={SCRATCH_MB}m,nr_inodes={FILES},mode=700")
        return SCRATCH

    def pause(self, request: dict[str, Any]) -> float:
        return LOOK_AT_MEMORY if request["processes"] > 1 else 0.0

    def excess(self, request: dict[str, Any], keeper: int, pids: list[int]) -> tuple[str, str]:
        """The kernel limits each process; here all of them together, with their files, which lie in memory."""
        most = (request["memory_mb"] << 20) + request["resident"] * len(pids)
        files = os.statvfs(SCRATCH)
        in_files = (files.f_blocks - files.f_bfree) * files.f_frsize
        found = usage.below(self.proc, keeper)
        size = in_files + usage.memory(self.proc, found, most - in_files)
        if size <= most:
            return "", ""
        return "memory", f"{len(found)} processes and their files had {size >> 20} MB, of {most >> 20} MB allowed"


class Landlock(Jail):
    """Landlock and seccomp alone: the file system is the real one, and a program is one process.

    Names, sizes and times of files outside can be asked for, because Landlock does not look at `stat`; their contents
    and the lists of other folders cannot be read.
    """

    name = "landlock"
    alone = "with Landlock and seccomp alone a program is one process, because nothing would count its children"

    def prepare(self) -> None:
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self.landlock = kernel.landlock_version()
        if self.landlock < kernel.LANDLOCK:
            found = f"version {self.landlock}" if self.landlock else "none"
            raise kernel.Refused(f"Landlock: version {kernel.LANDLOCK} is required (Linux 6.2), and there is {found}")
        self.base = os.path.realpath(tempfile.mkdtemp(prefix="gruppo-sandbox-"))
        # Packages may lie in a folder of the standard library, and a rule cannot make an exception. So this first list
        # has what is in those folders one by one. It is long, and made once; the short one of `lock` comes on top.
        entries = [(e.path, e.is_dir()) for f in folders() for e in os.scandir(f) if _listed(e)]
        listed = [(path, kernel.READ_FILE | (kernel.READ_DIR if folder else 0)) for path, folder in entries]
        names = [(folder, kernel.READ_DIR) for folder in folders()]
        self.rules = kernel.landlock([(self.base, kernel.OWN), *names, *listed, *devices()], self.landlock)

    def enter(self) -> None:
        self.folder = tempfile.mkdtemp(dir=self.base)

    def scratch(self) -> str:
        kernel.restrict(self.rules)
        return self.folder

    def pause(self, request: dict[str, Any]) -> float:
        return LOOK

    def excess(self, request: dict[str, Any], keeper: int, pids: list[int]) -> tuple[str, str]:
        if any(_threads(self.proc, pid) > THREADS for pid in pids):
            return "limit", f"more than {THREADS} threads"
        size, number = _measured(self.folder)
        if size <= SCRATCH_MB << 20:
            size += usage.nameless(self.proc, pids, self.folder, SCRATCH_MB << 20)
        if size > SCRATCH_MB << 20 or number > FILES:
            return "limit", f"more than {SCRATCH_MB} MB or {FILES} files in the scratch folder"
        return "", ""

    def leave(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self) -> None:
        shutil.rmtree(self.base, ignore_errors=True)


JAILS = {jail.name: jail for jail in (Namespaces, Landlock)}


def _listed(entry: "os.DirEntry[str]") -> bool:
    return entry.name not in PACKAGES and not entry.is_symlink()  # a link could lead anywhere


def _limit(limits: dict[str, Any], tasks: int, counted: bool) -> None:
    """Those that the kernel enforces. Tasks are counted where the user namespace is the program's own."""
    seconds, memory = math.ceil(limits["seconds"]) + 1, limits["base"] + (limits["memory_mb"] << 20)
    for what, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, SCRATCH_MB << 20),
        (resource.RLIMIT_NOFILE, DESCRIPTORS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
    ):
        resource.setrlimit(what, (value, value))
    if counted:  # the supervisor and the keeper are two of them
        most = 2 + tasks + (limits["processes"] - 1 if limits["processes"] > 1 else THREADS)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _threads(proc: int, pid: int) -> int:
    return usage.field(usage.read(proc, str(pid), "status"), b"Threads") or 0


def _measured(folder: str) -> tuple[int, int]:
    """Bytes and entries below a folder, as far as the limits; links are not followed."""
    size = number = 0
    waiting = [folder]
    while waiting and number <= FILES:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    number += 1
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    if number > FILES:
                        break
        except OSError:  # removed meanwhile, or made unreadable, which hides nothing for long
            continue
    return size, number
