"""Programs that try to get out, for `gruppo doctor --sandbox` and for the tests.

Each tries several ways and prints `ESCAPED` for one that worked. They are bounded and harmless if they do get out:
signals are 0 or SIGCONT, files that they may spoil are bait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Attack:
    """A program, how it may end, and its limits."""

    name: str
    code: str
    ends: tuple[str, ...] = ("ok",)
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    many: int = 1  # processes, where a program may have several


NAMELESS = """
import ctypes, time
libc = ctypes.CDLL(None)
def mapped(fd):
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mmap(None, 4096, 1, 1, fd, 0)
    os.close(fd)
def fill():
    kept = []
    for _ in range(6):
        fd = os.open("file", os.O_RDWR | os.O_CREAT)
        os.unlink("file")
        for _ in range(16):
            os.write(fd, bytes(1 << 20))
        kept.append(HELD)
    time.sleep(3)
attempt("fill", fill)
"""

ATTACKS = {
    attack.name: attack
    for attack in (
        Attack(
            "fork bomb",
            """
import time
made = 0
for _ in range(300):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    made += 1
print("ESCAPED" if made >= bait["processes"] else "held", made)
""",
            many=8,
        ),
        Attack(
            "threads",
            """
import threading, time
threading.stack_size(32768)
made = 0
try:
    for _ in range(400):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        made += 1
except RuntimeError:
    print("held", made)
else:
    time.sleep(5)
    print("ESCAPED", made)
os._exit(0)
""",
            ("ok", "limit", "error"),
        ),
        Attack(
            "memory bomb",
            """
kept = []
for _ in range(1000):
    kept.append(bytearray(1 << 20))
print("ESCAPED", len(kept))
""",
            ("memory",),
            {"memory_mb": 64},
        ),
        Attack(
            "memory of several processes",
            """
import time
def hold(say, number):
    kept = b"x" * (40 << 20)
    say()
    time.sleep(60)
together(4, hold)
""",
            ("memory", "ok"),
            {"memory_mb": 64},
            many=8,
        ),
        Attack(
            "memory behind a thread that has ended",
            """
import threading, time
def hold(say, number):
    def body():
        time.sleep(0.2)  # then the first thread is gone
        kept = b"x" * (40 << 20)
        say()
        time.sleep(60)
    threading.Thread(target=body).start()
    syscall("exit", 0)
together(4, hold)
""",
            ("memory", "ok"),
            {"memory_mb": 64},
            many=12,
        ),
        Attack(
            "memory on the move",
            """
import time
def hold(say, number):
    kept, end = [], time.monotonic() + 6
    while time.monotonic() < end:  # the memory goes from each process to its child
        if len(kept) < 160:
            kept.append(b"x" * (1 << 18))
        elif len(kept) == 160:
            say()
            kept.append(b"")
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass
    os._exit(0)
together(3, hold)
""",
            ("memory", "ok"),
            {"memory_mb": 64},
            many=12,
        ),
        Attack(
            "memory and files",
            """
import mmap, time
os.truncate(os.open("shared", os.O_RDWR | os.O_CREAT), 40 << 20)
def hold(say, number):
    if number:
        kept = b"x" * (25 << 20)
    else:
        kept = mmap.mmap(os.open("shared", os.O_RDWR), 40 << 20)
        os.unlink("shared")
        for page in range(0, len(kept), 4096):
            kept[page] = 1
    say()
    time.sleep(60)
together(3, hold)
""",
            ("memory", "ok"),
            {"memory_mb": 64},
            many=8,
        ),
        Attack(
            "shared memory",
            """
import mmap
attempt("memfd", lambda: syscall("memfd_create", b"x", 0))
attempt("system v", lambda: syscall("shmget", 0, 4096, 0o1600))
attempt("anonymous", lambda: mmap.mmap(-1, 1 << 20))
attempt("zero", lambda: mmap.mmap(os.open("/dev/zero", os.O_RDWR), 1 << 20))
attempt("zero, only read", lambda: mmap.mmap(os.open("/dev/zero", os.O_RDONLY), 1 << 20, prot=mmap.PROT_READ))
attempt("posix", lambda: os.open("/dev/shm/gruppo-escaped", os.O_RDWR | os.O_CREAT | os.O_EXCL))
""",
        ),
        Attack("endless output", 'while True:\n    print("x" * 1000)', ("output",), {"output_bytes": 10_000}),
        Attack("endless loop", "while True:\n    pass", ("timeout",), {"seconds": 0.3}),
        Attack(
            "signals that are ignored",
            """
import signal, time
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    time.sleep(1)
""",
            ("timeout",),
            {"seconds": 0.3},
        ),
        Attack(
            "scratch folder",
            """
def large():
    with open("large", "wb") as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
def many():
    for number in range(200):
        with open(f"part{number}", "wb") as file:
            file.write(bytes(1 << 20))
    import time
    time.sleep(3)
def nodes():
    for number in range(20_000):
        open(f"n{number}", "w").close()
    import time
    time.sleep(3)
attempt("one file", large)
try:
    os.unlink("large")
except OSError:
    pass
attempt("many files", many)
attempt("many names", nodes)
""",
            ("ok", "limit"),
        ),
        Attack("open files without a name", NAMELESS.replace("HELD", "fd"), ("ok", "limit")),
        Attack("mapped files without a name", NAMELESS.replace("HELD", "mapped(fd)"), ("ok", "limit")),
        Attack(
            "sockets",
            """
import socket
def speak(family, kind, address):
    one = socket.socket(family, kind)
    one.settimeout(1)
    one.connect(address)
    one.send(b"escaped")
    return address
attempt("tcp", lambda: speak(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", bait["port"])))
attempt("udp", lambda: speak(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", bait["port"])))
attempt("ipv6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
attempt("unix", lambda: speak(socket.AF_UNIX, socket.SOCK_STREAM, bait["unix"]))
attempt("abstract", lambda: speak(socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + bait["abstract"]))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("vsock", lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
attempt("pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", bait["unix"]))
attempt("name", lambda: socket.getaddrinfo("example.com", 80))
""",
        ),
        Attack(
            "home and environment",
            """
attempt("secret", lambda: open(bait["secret"]).read())
attempt("list", lambda: os.listdir(os.path.dirname(bait["secret"])).index(os.path.basename(bait["secret"])))
attempt("passwords", lambda: open("/etc/passwd").read())
attempt("packages", lambda: os.listdir(bait["packages"])[0] and __import__("numpy"))
attempt("package files", lambda: open(bait["package"]).read(100))
attempt("environment", lambda: {**os.environ, **{}}.popitem())
attempt("environment in memory", lambda: (__import__("posix").environ or {}).popitem())
attempt("temporary folder", lambda: os.listdir(bait["temporary"])[0])
""",
        ),
        Attack(
            "writing outside",
            """
out, kept = bait["outside"], bait["outside"] + "/kept"
attempt("new file", lambda: open(out + "/new", "w"))
attempt("append", lambda: open(kept, "a"))
attempt("truncate", lambda: os.truncate(kept, 0))
attempt("open and truncate", lambda: os.open(kept, os.O_RDONLY | os.O_TRUNC))
attempt("remove", lambda: os.unlink(kept))
attempt("rename", lambda: os.rename(kept, out + "/renamed"))
attempt("move in", lambda: os.rename(kept, "moved"))
attempt("hard link", lambda: os.link(kept, "linked"))
attempt("folder", lambda: os.mkdir(out + "/folder"))
attempt("mode", lambda: os.chmod(kept, 0o777))
attempt("times", lambda: os.utime(kept, (1, 1)))
attempt("owner", lambda: os.chown(kept, os.getuid(), os.getgid()))
attempt("attribute", lambda: os.setxattr(kept, "user.x", b"x"))
attempt("own library", lambda: open(os.__file__, "a"))
attempt("mode of the library", lambda: os.chmod(os.__file__, 0o644))
attempt("next to scratch", lambda: open("../x", "w"))
attempt("temporary", lambda: open("/tmp/gruppo-escaped", "x"))
attempt("device", lambda: os.mknod("node", 0o600 | 0o060000, 0x0800))
""",
        ),
        Attack(
            "signals",
            """
import resource, signal
me = os.getpid()
for name, pid in (("parent", os.getppid()), ("host", bait["pid"]), ("group", 0), ("everyone", -1)):
    attempt(name, lambda: os.kill(pid, signal.SIGCONT if pid > 1 else 0) if pid != me else 1 / 0)
attempt("process group", lambda: os.killpg(os.getpgid(os.getppid()), 0))
attempt("limits of the host", lambda: resource.prlimit(bait["pid"], resource.RLIMIT_CORE))
attempt("descriptor of the host", lambda: syscall("pidfd_open", bait["pid"], 0))
attempt("priority", lambda: syscall("setpriority", 0, bait["pid"], 0))
attempt("affinity", lambda: os.sched_setaffinity(bait["pid"], os.sched_getaffinity(0)))
import fcntl
attempt("owner of signals", lambda: fcntl.fcntl(0, fcntl.F_SETOWN, bait["pid"]))
""",
        ),
        Attack(
            "ptrace",
            """
import ctypes
attempt("attach to the parent", lambda: syscall("ptrace", 16, os.getppid(), 0, 0))
attempt("attach to the host", lambda: syscall("ptrace", 16, bait["pid"], 0, 0))
attempt("traced by the parent", lambda: syscall("ptrace", 0, 0, 0, 0))
buffer = ctypes.create_string_buffer(64)
attempt("memory of the parent", lambda: syscall("process_vm_readv", os.getppid(), buffer, 1, buffer, 1, 0))
""",
        ),
        Attack(
            "children left behind",
            """
import ctypes, time
def leave():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, bait["mark"].encode())
            for fd in range(3):
                os.close(fd)
            time.sleep(60)
        os._exit(0)
    os.wait()
    time.sleep(0.1)
try:
    leave()
except OSError:
    print("held")
""",
            many=8,
        ),
        Attack(
            "symlinks",
            """
os.symlink(bait["secret"], "secret")
attempt("read", lambda: open("secret").read())
os.symlink(bait["outside"], "folder")
attempt("write", lambda: open("folder/new", "w"))
attempt("list", lambda: os.listdir("folder"))
os.symlink("/", "root")
attempt("root", lambda: open("root" + bait["secret"]).read())
os.symlink("/proc/self/root", "magic")
attempt("magic", lambda: open("magic" + bait["secret"]).read())
""",
        ),
        Attack(
            "proc",
            """
for pid in ("self", "1", str(os.getppid()), str(bait["pid"])):
    for name in ("environ", "maps", "mem", "cmdline", "status"):
        attempt(f"{pid} {name}", lambda: open(f"/proc/{pid}/{name}", "rb").read(10))
    attempt(f"{pid} descriptors", lambda: os.listdir(f"/proc/{pid}/fd"))
attempt("list", lambda: os.listdir("/proc"))
attempt("kernel", lambda: open("/proc/sys/kernel/hostname").read())
attempt("system", lambda: os.listdir("/sys"))
""",
        ),
        Attack(
            "privileges",
            """
attempt("user namespace", lambda: syscall("unshare", 0x10000000))
attempt("mount", lambda: syscall("mount", b"tmpfs", b".", b"tmpfs", 0, 0))
attempt("root", lambda: os.setuid(0) or 1 / 0 if os.getuid() == 0 else os.setuid(0))
attempt("chroot", lambda: syscall("chroot", b"."))
attempt("io_uring", lambda: syscall("io_uring_setup", 8, bytes(256)))
attempt("bpf", lambda: syscall("bpf", 0, bytes(64), 64))
attempt("keys", lambda: syscall("keyctl", 0, -3, 0))
attempt("userfaultfd", lambda: syscall("userfaultfd", 1))
attempt("perf", lambda: syscall("perf_event_open", bytes(128), 0, -1, -1, 0))
attempt("handles", lambda: syscall("open_by_handle_at", 3, bytes(64), 0))
attempt("inotify", lambda: syscall("inotify_init1", 0))
attempt("clone3", lambda: syscall("clone3", bytes(64), 64))
attempt("exec", lambda: os.execv(bait["python"], ["python", "-c", "print('ESCAPED exec')"]))
import subprocess
attempt("subprocess", lambda: subprocess.run(["/bin/true"]))
""",
        ),
        Attack(
            "result",
            """
for fd in range(3, 64):
    for text in (b"exit 0\\n", b"ready 1\\n", b"x" * 100_000):
        try:
            os.set_blocking(fd, False)
            os.write(fd, text)
        except OSError:
            break
os.closerange(3, 64)
raise SystemExit(5)
""",
            ("error",),
        ),
    )
}
