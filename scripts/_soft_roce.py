"""scripts/soft_roce: runs a command in a virtual machine whose kernel has soft-RoCE (rdma_rxe).

Standard library only: it runs before anything is installed. No KVM is needed: everything is
emulated.
"""

import argparse
import contextlib
import fcntl
import lzma
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

GUEST = Path(__file__).resolve().parent / "_soft_roce_guest"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jax_fabric" / "soft_roce"
PACKAGES = (
    *("qemu-system-x86", "busybox-static", "kmod", "cpio", "xz-utils", "zstd", "binutils"),
    *("iproute2", "rdma-core", "ibverbs-providers", "libibverbs1"),
)
# Not the cloud image: it has no rdma_rxe.
KERNEL = "linux-image-amd64"
# crc32_generic and not crc32_pclmul: carry-less multiplication is slow when it is emulated.
MODULES = (
    *("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console", "crc32_generic"),
    *("rdma_rxe", "ib_uverbs", "veth", "sch_netem"),
)

DESCRIPTION = """Runs COMMAND in a virtual machine (QEMU, no KVM needed) with Debian's own kernel
and two soft-RoCE devices, rxe0 and rxe1, with a cable between them. The machine sees this one's
files, folder and environment; what it writes is gone afterwards. Output and exit status are the
command's. Installs what it needs by apt-get, and downloads a kernel package, which it does not
install."""

EXIT_TIMEOUT = 124
EXIT_NO_MACHINE = 125


class NoMachineError(Exception):
    """There is no virtual machine to run anything in; says why."""


def say(text: str) -> None:
    """Prints for whoever waits."""
    print(f"soft_roce: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Returns what the command prints; raises NoMachineError with what it complains about."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoMachineError(
            f"{shlex.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-500:]}"
        )
    return done.stdout


def install() -> None:
    """Installs the Debian packages that are missing."""
    status = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\n", *PACKAGES],
        capture_output=True,
        text=True,
    ).stdout
    missing = [each for each in PACKAGES if f"ii {each}" not in status.splitlines()]
    if not missing:
        return
    say(f"Debian packages: installing {' '.join(missing)}")
    root = [] if os.getuid() == 0 else ["sudo"]
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    run(*root, *quiet, "update")
    run(*root, *quiet, "install", "-y", "--no-install-recommends", *missing)


# ---- The kernel -----------------------------------------------------------------------------


def kernel_package() -> str:
    """Returns the image that the meta package stands for now."""
    found = re.search(r"Depends: (linux-image-\S+)", run("apt-cache", "depends", KERNEL))
    if found is None:
        raise NoMachineError(f"apt-cache knows no {KERNEL}: is this Debian?")
    return found.group(1)


def unpack_kernel(image: bytes) -> bytes:
    """Returns the ELF file inside of a bzImage: no emulated CPU has to unpack it."""
    setup = (image[0x1F1] + 1) * 512
    offset, length = struct.unpack("<II", image[0x248:0x250])
    payload = image[setup + offset : setup + offset + length]
    if payload.startswith(b"\xfd7zXZ\0"):
        kernel = lzma.LZMADecompressor().decompress(payload)
    else:  # zstd, and four bytes that say how long it is
        kernel = subprocess.run(["zstd", "-dc"], input=payload[:-4], capture_output=True).stdout
    if not kernel.startswith(b"\x7fELF"):
        raise NoMachineError("the kernel is packed in a way that is not known here")
    return kernel


def copy_module(path: str, to: Path) -> str:
    """Copies one module, unpacked and without what only debuggers read. Returns its name."""
    name = re.sub(r"\.(xz|zst)$", "", Path(path).name)
    if not (to / name).exists():
        unpack = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-qdc"]}.get(Path(path).suffix, ["cat"])
        (to / name).write_bytes(
            subprocess.run([*unpack, path], check=True, capture_output=True).stdout
        )
        # With BTF the kernel would read through all of its own types first.
        run("objcopy", "--strip-debug", "-R", ".BTF", "-R", ".BTF.ext", to / name)
    return name


def build_boot_files(package: str, to: Path) -> None:
    """Makes `vmlinux` and `initrd.img` of the kernel package, which is not installed."""
    say(f"making boot files of {package} (once)")
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package, cwd=scratch)
        tree = scratch / "kernel"
        run("dpkg-deb", "-x", next(scratch.glob("*.deb")), tree)
        # Since Debian 13 packages name the folder that /lib points to.
        if not (tree / "lib").exists():
            (tree / "lib").symlink_to("usr/lib")
        version = next((tree / "lib" / "modules").iterdir()).name
        run("depmod", "-b", tree, version)
        initrd = scratch / "initrd"
        for folder in ("bin", "proc", "sys", "dev", "lower", "upper", "root", "lib"):
            (initrd / folder).mkdir(parents=True)
        busybox = shutil.which("busybox")
        if busybox is None:
            raise NoMachineError("busybox is not there: apt-get install busybox-static")
        shutil.copy(busybox, initrd / "bin" / "busybox")
        order: dict[str, None] = {}
        for module in MODULES:
            needed = subprocess.run(
                ["modprobe", "-d", tree, "-S", version, "--show-depends", module],
                capture_output=True,
                text=True,
            ).stdout
            for path in re.findall(r"^insmod (\S+)", needed, re.MULTILINE):
                order[copy_module(path, initrd / "lib")] = None
        (initrd / "lib" / "order").write_text("".join(f"{name}\n" for name in order))
        shutil.copy(GUEST / "init", initrd / "init")
        (initrd / "init").chmod(0o755)
        files = run("find", ".", cwd=initrd)
        packed = subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            cwd=initrd,
            input=files.encode(),
            capture_output=True,
            check=True,
        ).stdout
        (to / "initrd.img").write_bytes(packed)
        (to / "vmlinux.new").write_bytes(
            unpack_kernel((tree / "boot" / f"vmlinuz-{version}").read_bytes())
        )
        (to / "vmlinux.new").rename(to / "vmlinux")  # last: it says that all are there


def boot_files() -> Path:
    """Returns the folder with `vmlinux` and `initrd.img`; makes them if they are not of today."""
    package = kernel_package()
    stamp = f"{package}\n{(GUEST / 'init').read_text()}{MODULES}"
    folder = CACHE / package
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made_of = folder / "made_of"
        if (
            not (folder / "vmlinux").exists()
            or not made_of.exists()
            or made_of.read_text() != stamp
        ):
            build_boot_files(package, folder)
            made_of.write_text(stamp)
    return folder


# ---- The machine ----------------------------------------------------------------------------


def write_job(job: Path, command: Sequence[str], netem: str, writable: Path | None) -> None:
    """Writes what job.sh reads."""
    shutil.copy(GUEST / "job.sh", job / "job.sh")
    (job / "command").write_text(shlex.join(command) + "\n")
    (job / "folder").write_text(os.getcwd())
    (job / "netem").write_text(netem)
    (job / "writable").write_text("" if writable is None else str(writable))
    skipped = {"PWD", "OLDPWD", "SHLVL", "_"}
    lines = [
        f"{name}={shlex.quote(value)}\n"
        for name, value in os.environ.items()
        if name.isidentifier() and name not in skipped
    ]
    (job / "environment").write_text("".join(lines))
    for name in ("status", "console"):
        (job / name).write_text("")
    os.mkfifo(job / "out")


def machine(job: Path, files: Path, args: argparse.Namespace) -> list[str]:
    """Returns the command that is the machine."""

    def share(tag: str, path: str | Path, how: str = "readonly=on") -> list[str]:
        # A comma ends an option of QEMU's unless it is doubled.
        where = str(path).replace(",", ",,")
        return [
            *(
                "-fsdev",
                f"local,id={tag},path={where},security_model=none,multidevs=remap,{how}",
            ),
            *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        ]

    def port(number: int, name: str) -> list[str]:
        return [
            *("-chardev", f"file,id={name},path={job / name}"),
            *("-device", f"virtserialport,nr={number},chardev={name},name={name}"),
        ]

    # erms off: the kernel would copy by an instruction that QEMU emulates byte by byte.
    return [
        *(
            "qemu-system-x86_64",
            "-M",
            "q35",
            "-accel",
            "tcg,thread=multi,tb-size=512",
            "-cpu",
            "max,erms=off",
        ),
        *(
            "-smp",
            str(args.cpus),
            "-m",
            str(args.memory),
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
        ),
        *("-display", "none", "-serial", f"file:{job / 'console'}"),
        *("-kernel", str(files / "vmlinux"), "-initrd", str(files / "initrd.img"), "-append"),
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr cryptomgr.notests apparmor=0 "
        "random.trust_cpu=on",
        *share("host", "/"),
        *share("job", job),
        *(share("writable", args.writable, "readonly=off") if args.writable else []),
        *("-device", "virtio-serial-pci,max_ports=4"),
        *port(1, "out"),
        *port(2, "status"),
    ]


@contextlib.contextmanager
def copied_output(pipe: Path) -> Iterator[None]:
    """Copies what comes through the pipe to the standard output."""

    def copy() -> None:
        with open(pipe, "rb") as source:
            while chunk := source.read1(65536):
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # It waits for a writer, which there is none of when the machine did not start.
        with contextlib.suppress(OSError):
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        thread.join(timeout=10)


def boot(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    files = boot_files()
    with tempfile.TemporaryDirectory(prefix="soft_roce_") as name:
        job = Path(name)
        write_job(job, args.command, args.netem, args.writable)
        with copied_output(job / "out"):
            try:
                done = subprocess.run(
                    machine(job, files, args), stdin=subprocess.DEVNULL, timeout=args.timeout
                )
            except subprocess.TimeoutExpired:
                say(f"it took longer than {args.timeout} s (--timeout)")
                return EXIT_TIMEOUT
        status = (job / "status").read_text().strip()
        if status.isdigit():
            return int(status)
        console = "\n".join((job / "console").read_text(errors="replace").splitlines()[-20:])
        raise NoMachineError(
            f"it ended without a result (QEMU's exit status {done.returncode}):\n{console}"
        )


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="scripts/soft_roce",
        usage="scripts/soft_roce [options] COMMAND [ARGUMENT...]",
        description=DESCRIPTION,
    )
    parser.add_argument(
        "--netem",
        default="",
        help='what happens on the cable: "loss 1%%" (tc-netem(8)); default: nothing',
    )
    parser.add_argument(
        "--writable",
        type=lambda name: Path(name).resolve(strict=True),
        metavar="FOLDER",
        help="what the command writes to it stays",
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds for all of it (default: 600)"
    )
    parser.add_argument(
        "--memory", type=int, default=3072, help="of the machine, MiB (default: 3072)"
    )
    parser.add_argument("--cpus", type=int, default=2, help="of the machine (default: 2)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.command:
        parser.error("which command? For instance: scripts/soft_roce ibv_devinfo")
    try:
        install()
        return boot(args)
    except NoMachineError as error:
        say(str(error))
        return EXIT_NO_MACHINE


if __name__ == "__main__":
    sys.exit(main())
