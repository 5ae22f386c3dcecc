"""What a measurement needs of the machine: a cold page cache, a memory limit, company, its load, and whether its cores
are its own.

    python machine.py [SECONDS]      # instructions per cycle, twice a second, for so long or until it is stopped
"""
import contextlib
import ctypes
import mmap
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def split(words):
    """Words before and after `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def load():
    return os.getloadavg()[0]


def instructions_per_cycle():
    """How many instructions this core takes per cycle, of those that do nothing; `None` where that cannot be measured.

    It is 4 to 8 on a core of one's own, and about half of that where another thread of the same core is at work: on a
    shared machine somebody else's, of which nothing here can be seen. Multiply-adds, which need two per cycle, do not
    notice; most other kernels do (docs/experiments/0090).
    """
    if platform.machine() != "x86_64":
        return None
    nothing, multiply = b"\x90", b"\x48\x0f\xaf\xc0"  # nop; imul rax, rax, each of which waits 3 cycles for the last
    try:
        empty, chain = seconds(nothing * 120, 500_000), seconds(multiply * 100, 100_000)
    except PermissionError:
        return None  # a system that runs no code that was written meanwhile
    return (500_000 * 120 / empty) / (100_000 * 100 * 3 / chain)


def sharing(before):
    """What to print beside a figure: instructions per cycle before it was measured, and now; nothing without them."""
    return f"; {before:.1f}, {instructions_per_cycle():.1f} instructions per cycle" if before else ""


def seconds(body, rounds):
    """How long some machine code takes."""
    loop = body + b"\x48\xff\xcf"  # dec rdi
    code = loop + b"\x0f\x85" + (-len(loop) - 6).to_bytes(4, "little", signed=True) + b"\xc3"  # jnz; ret
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as memory:
        memory.write(code)
        place = ctypes.c_char.from_buffer(memory)
        run = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(ctypes.addressof(place))
        started = time.perf_counter()
        run(rounds)
        took = time.perf_counter() - started
        del place
    return took


def drop_from_cache(path):
    """Drops one file from the page cache. Without it pages count against whoever read them first."""
    handle = os.open(path, os.O_RDONLY)
    os.fdatasync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def size(text):
    """Bytes of 5GiB, 300MB or a plain number."""
    units = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    unit = next((unit for unit in units if text.endswith(unit)), "")
    return int(float(text.removesuffix(unit)) * units.get(unit, 1))


@contextlib.contextmanager
def read_ahead(path, kilobytes):
    """What the system reads beyond a page of a file on this disk that is opened meanwhile; needs root."""
    device = os.stat(path).st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    found = [place / "queue/read_ahead_kb" for place in (node, node.parent)]
    setting = next((file for file in found if file.exists()), None)
    # A file system without a disk of its own.
    if setting is None:
        yield
        return
    before = setting.read_text()
    setting.write_text(str(kilobytes))
    try:
        yield
    finally:
        setting.write_text(before)


def disk_bytes_per_second(path, block=8 << 20, threads=4, most=2 << 30):
    """What the disk gives whoever reads a large file past the page cache, several blocks at once."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    offsets = range(0, min(os.fstat(handle).st_size, most) // block * block, block)

    def read(offset):
        with mmap.mmap(-1, block) as buffer:
            return os.preadv(handle, [buffer], offset)

    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        bytes_read = sum(pool.map(read, offsets))
    os.close(handle)
    return bytes_read / (time.perf_counter() - started)


class MemoryLimit:
    """A cgroup of at most `limit` bytes, page cache included; needs root. Version 1 or 2."""

    def __init__(self, limit):
        version_1 = (CGROUPS / "memory").is_dir()
        parent = CGROUPS / "memory" if version_1 else CGROUPS
        self.path = parent / f"bench-{os.getpid()}"
        self.limit_file = "memory.limit_in_bytes" if version_1 else "memory.max"
        self.peak_file = "memory.max_usage_in_bytes" if version_1 else "memory.peak"
        self.limit = limit

    def __enter__(self):
        self.path.mkdir()
        (self.path / self.limit_file).write_text(str(self.limit))
        return self

    def __exit__(self, *_):
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.1)

    def enter(self):
        """For `preexec_fn`: the child belongs to the group before it allocates anything."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        return int((self.path / self.peak_file).read_text())


@contextlib.contextmanager
def company(count):
    """`count` processes that do nothing but compute."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main():
    end = time.monotonic() + float(sys.argv[1]) if sys.argv[1:] else float("inf")
    while (found := instructions_per_cycle()) is not None:
        print(f"{found:.1f}", flush=True)
        if time.monotonic() > end:
            return
        time.sleep(0.5)
    sys.exit("instructions per cycle are measured on x86-64, where code that was just written may run")


if __name__ == "__main__":
    main()
