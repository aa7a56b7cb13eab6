"""What is more than shell glue in scripts/: the test run, its report, the requirements list.

Used by scripts/setup and scripts/test. Standard library only: it runs before anything is installed.
"""

import argparse
import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from _counting import Count, count_build_events, count_demo, count_junit

ROOT = Path(__file__).resolve().parent.parent
MONOREPO = ROOT / "examples" / "bazel_monorepo"
PYTHON = ROOT / ".venv" / "bin" / "python3"
CXX_FOLDERS = ("csrc", "tests", "benchmarks", "examples")
CXX_SUFFIXES = (".cc", ".h", ".cu", ".cuh")

# A step that hangs must not cost the report of all others.
STEP_TIMEOUT_S = 40 * 60
SOAK_STEP_TIMEOUT_S = 3 * 3600
_PYTEST_PROCESSES = 4


# ---- Requirements ---------------------------------------------------------------------------


def requirements() -> list[str]:
    """Returns what a development machine installs: everything that pyproject.toml names."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        from pip._vendor import tomli as tomllib
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = config["project"]
    wanted = [*config["build-system"]["requires"], *project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    # The bound on jaxlib is for wheels that travel. Here the extension meets the very jaxlib it
    # was built with, which may be any that jax asks for.
    return sorted({r for r in wanted if not r.startswith("jaxlib")})


# ---- Running steps --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Step:
    """One command of a part of the run."""

    name: str
    command: Sequence[str | Path]
    cwd: Path = ROOT
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    report: Path | None = None
    count: Callable[[Path], Count] | None = None
    # The rest of the part makes no sense without it.
    essential: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a step."""

    part: str
    step: str
    ok: bool
    seconds: float
    count: Count


def run_command(step: Step, timeout_s: float) -> int:
    """Runs a step's command to its end or its time limit, and returns its exit code."""
    command = [str(word) for word in step.command]
    try:
        process = subprocess.Popen(
            command,
            cwd=step.cwd,
            env={**os.environ, **step.env},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", flush=True)
        return 127
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        print(f"stopped: not done after {timeout_s} s", flush=True)
        return 124
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with everything that it has started
            process.wait()


def run_step(part: str, step: Step, timeout_s: float) -> Result:
    """Runs a step and counts its test cases; a failed step counts as one failed case at least."""
    print(f"\n=== {part}: {step.name}", flush=True)
    begin = time.monotonic()
    code = run_command(step, timeout_s)
    count = Count()
    if step.report is not None and step.count is not None and step.report.exists():
        try:
            count = step.count(step.report)
        except (ElementTree.ParseError, ValueError, KeyError) as error:
            print(f"cannot read the report of this step: {error}", flush=True)
            code = code or 1
    ok = code == 0 and count.failed == 0
    if not ok:
        count.failed = max(count.failed, 1)
    seconds = time.monotonic() - begin
    outcome = "ok" if ok else f"FAILED (exit code {code})"
    print(f"--- {part}: {step.name}: {outcome}, {seconds:.1f} s", flush=True)
    return Result(part, step.name, ok, seconds, count)


# ---- The parts ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Context:
    """What the parts share."""

    scratch: Path
    soak: bool
    seeds: str | None = None

    @property
    def test_env(self) -> dict[str, str]:
        """What tests see in their environment."""
        env = {"JAX_FABRIC_SOAK": "1"} if self.soak else {}
        return env | ({"JAX_FABRIC_SEEDS": self.seeds} if self.seeds else {})

    @property
    def step_timeout_s(self) -> int:
        """How long a step may take."""
        return SOAK_STEP_TIMEOUT_S if self.soak else STEP_TIMEOUT_S


def bazel() -> str:
    """Returns the bazel to run."""
    return os.environ.get("BAZEL") or ("bazel" if shutil.which("bazel") else "bazelisk")


# Each library as one file takes a third of the time. The consumer workspace compiles the files one
# by one, as others do.
UNITY = "--//:unity"


def bazel_test(context: Context, name: str, *options: str, cwd: Path = ROOT) -> Step:
    """Returns a step that runs all tests of a workspace and leaves its build events to count."""
    events = context.scratch / f"{name.replace(' ', '_')}.json"
    test_env = [f"--test_env={k}={v}" for k, v in context.test_env.items()]
    if context.test_env:
        test_env.append(f"--test_timeout={context.step_timeout_s - 60}")
    return Step(
        name,
        [
            *(bazel(), "test", "--config=ci", f"--build_event_json_file={events}"),
            *(*options, *test_env, "//..."),
        ],
        cwd=cwd,
        report=events,
        count=count_build_events,
    )


def build_env() -> dict[str, str]:
    """Returns what setup.py sees: it uses what "bazel test" has compiled, and CUDA only if told."""
    arguments = f"{os.environ.get('JAX_FABRIC_BAZEL_ARGS', '')} {UNITY}"
    cuda = os.environ.get("JAX_FABRIC_CUDA", "0")
    return {"JAX_FABRIC_CUDA": cuda, "JAX_FABRIC_BAZEL_ARGS": arguments}


def editable_install() -> Step:
    """Returns the step that builds the extension into the source tree."""
    return Step(
        "build into .venv",
        [
            *(PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check"),
            *("--no-build-isolation", "--no-deps", "--editable", "."),
        ],
        env=build_env(),
        essential=True,
    )


def lint(_: Context) -> Iterator[Step]:
    """Style and static checks."""
    tool = PYTHON.parent
    yield Step("ruff check", [tool / "ruff", "check", "--quiet", "."])
    yield Step("ruff format", [tool / "ruff", "format", "--check", "--quiet", "."])
    # Not by git: a new file is checked before it is committed, too, and so is a copy without git.
    sources = sorted(
        path.relative_to(ROOT)
        for folder in CXX_FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in CXX_SUFFIXES
        and path.is_file()
        # Environments of benchmark peers bring headers of their own.
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    )
    if sources:
        yield Step("clang-format", [tool / "clang-format", "--dry-run", "-Werror", *sources])


def cpp(context: Context) -> Iterator[Step]:
    """C++ tests, and the smoke test that Python programs work under Bazel."""
    yield bazel_test(context, "bazel test", UNITY)


def sanitize(context: Context) -> Iterator[Step]:
    """C++ tests under ThreadSanitizer, then under AddressSanitizer and UBSan."""
    yield bazel_test(context, "ThreadSanitizer", UNITY, "--config=tsan")
    yield bazel_test(context, "AddressSanitizer and UBSan", UNITY, "--config=asan")


# One version of all of them: unpinned ones do not fit each other.
_CUDA_COMPILER = [
    f"nvidia-{package}==13.0.*"
    for package in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-runtime", "cuda-cccl")
]


CUDA_PROGRAMS = (
    "//csrc/kernels/cuda:gpu_programs",
    "//csrc/moe/cuda:proxy_benchmark",
    "//csrc/moe/cuda:signals_benchmark",
    "//csrc/engine/domains/nic:cuda_memory_test",
)


def cuda(_: Context) -> Iterator[Step]:
    """The CUDA kernels, compiled and linked; scripts/gpu_check.sh runs them on a GPU."""
    if not shutil.which("nvcc") and not Path("/usr/local/cuda/bin/nvcc").exists():
        yield Step(
            "CUDA compiler into .venv",
            [PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *_CUDA_COMPILER],
            essential=True,
        )
        # A running server has already seen that there is none.
        yield Step("stop Bazel", [bazel(), "shutdown"])
    yield Step(
        "compile and link",
        [bazel(), "build", "--config=ci", UNITY, "--config=cuda", *CUDA_PROGRAMS],
    )


# What stands for NICs in the Python tests.
DOUBLES = (
    "//csrc/engine/domains/connectx/double:libverbs_double.so",
    "//csrc/engine/domains/efa/fakesrd:libfakesrd.so",
)


def python(context: Context) -> Iterator[Step]:
    """Python tests."""
    yield editable_install()
    # Last, so that bazel-bin leads to it.
    yield Step("doubles of NICs", [bazel(), "build", "--config=ci", UNITY, *DOUBLES])
    report = context.scratch / "pytest.xml"
    # A file's tests stay in one process, as its fixtures do. More processes would want more memory
    # than a machine with so many cores need have.
    processes = min(os.cpu_count() or 1, _PYTEST_PROCESSES)
    yield Step(
        "pytest",
        [
            *(PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(f"--numprocesses={processes}", "--dist=loadfile", f"--junitxml={report}", "tests"),
        ],
        # XLA:CPU sizes its thread pool by NPROC; with a thread a core, programs with several
        # devices that wait for each other can block themselves.
        env={"NPROC": "32", **context.test_env},
        report=report,
        count=count_junit,
    )


def monorepo(context: Context) -> Iterator[Step]:
    """A workspace of somebody else that depends on this one."""
    # One Bazel server at a time: two of them hold memory that the tests need.
    yield Step("stop Bazel", [bazel(), "shutdown"])
    interpreter = f"--repo_env=PYTHON_BIN_PATH={PYTHON}"
    yield bazel_test(context, "consumer workspace", interpreter, cwd=MONOREPO)
    yield Step(
        "program of the consumer workspace",
        [bazel(), "run", "--config=ci", interpreter, "//:engine_lifetime"],
        cwd=MONOREPO,
    )
    yield Step("stop Bazel in the consumer workspace", [bazel(), "shutdown"], cwd=MONOREPO)


def wheel(context: Context) -> Iterator[Step]:
    """A wheel as users get it, installed into an empty environment."""
    venv = context.scratch / "venv"
    wheels = context.scratch / "wheels"
    pip = ["-m", "pip", "-qq", "--disable-pip-version-check"]
    # setuptools would pack modules that an earlier build left there and that are deleted since.
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    yield Step(
        "build",
        [PYTHON, *pip, "wheel", "--no-deps", f"--wheel-dir={wheels}", "."],
        env=build_env(),
        essential=True,
    )
    built = sorted(wheels.glob("*.whl"))
    yield Step(
        "is one for CPython >= 3.10 (cp310-abi3)",
        ["test", "1", "=", str(len([w for w in built if "-cp310-abi3-" in w.name]))],
    )
    yield Step("new environment", [PYTHON, "-m", "venv", venv], essential=True)
    yield Step("install", [venv / "bin" / "python3", *pip, "install", *built], essential=True)
    check = "import jax_fabric, jax_fabric._core as core; print(core.ffi_api_version())"
    yield Step("import", [venv / "bin" / "python3", "-c", check], cwd=context.scratch)
    yield Step("command", [venv / "bin" / "jax-fabric", "--help"], cwd=context.scratch)
    yield demo(context, venv, "demo")
    small = ("--processes=4", "--ranks=4", "--layers=1", "--steps=4")
    yield demo(context, venv, "demo in 4 processes", *small, env={"XLA_FLAGS": _HURRY})


# Each process compiles all of it; that XLA hurries takes half of the time.
_HURRY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

DEVICE_TESTS = (
    "csrc/engine/domains/connectx/connectx_device_conformance_test",
    "csrc/engine/domains/connectx/connectx_device_engine_conformance_test",
    "csrc/moe/connectx_device_exchange_test",
)


def vm(context: Context) -> Iterator[Step]:
    """The ConnectX domain over soft-RoCE devices in a virtual machine, without and with loss."""
    yield editable_install()
    targets = ["//{}:{}".format(*path.rsplit("/", 1)) for path in DEVICE_TESTS]
    yield Step("build", [bazel(), "build", "--config=ci", UNITY, *targets], essential=True)
    # All that is registered is pinned there: the machine has no room for 4 GiB.
    runs = (
        (DEVICE_TESTS[0], "", "*OneThread-*BeyondFourGiB*"),
        (DEVICE_TESTS[0], "loss 1%", "*Processes-*BeyondFourGiB*:*ManyPeers*:*EveryoneWrites*"),
        (DEVICE_TESTS[1], "loss 1%", "*-*BeyondFourGiB*:*AtAnyStep*"),
        (DEVICE_TESTS[2], "", "*"),
        (DEVICE_TESTS[2], "loss 1% delay 1ms reorder 5%", "*"),
    )
    for path, netem, chosen in runs:
        name = Path(path).name
        report = context.scratch / f"{name}{len(netem)}.xml"
        yield Step(
            f"{name}, {netem or 'no loss'}",
            [
                *("scripts/soft_roce", "--timeout=240", f"--netem={netem}"),
                *(f"--writable={context.scratch}", f"bazel-bin/{path}"),
                *("--gtest_brief=1", f"--gtest_filter={chosen}", f"--gtest_output=xml:{report}"),
            ],
            report=report,
            count=count_junit,
        )
    report = context.scratch / "demo_in_the_machine.json"
    yield Step(
        "demo in 2 processes",
        [
            *("scripts/soft_roce", "--timeout=480", "--memory=5000"),
            *(f"--writable={context.scratch}", "env", "NPROC=32", f"XLA_FLAGS={_HURRY}"),
            *(PYTHON.parent / "jax-fabric", "demo", "moe", "--quick", "--domain=connectx"),
            *("--processes=2", "--ranks=2", "--experts=4", "--layers=1", "--steps=2"),
            f"--json={report}",
        ],
        report=report,
        count=count_demo,
    )


def demo(
    context: Context, venv: Path, name: str, *options: str, env: Mapping[str, str] | None = None
) -> Step:
    """Returns the step that runs the demonstration of an installed wheel and counts its checks."""
    report = context.scratch / f"{name.replace(' ', '_')}.json"
    command = [venv / "bin" / "jax-fabric", "demo", "moe", "--quick", f"--json={report}", *options]
    return Step(name, command, context.scratch, env or {}, report, count_demo)


PARTS: dict[str, Callable[[Context], Iterator[Step]]] = {
    part.__name__: part for part in (lint, cpp, cuda, sanitize, vm, python, monorepo, wheel)
}


def print_summary(results: Sequence[Result]) -> bool:
    """Prints the table and the closing line; returns whether all is well."""
    width = max([len(f"{r.part}: {r.step}") for r in results], default=0)
    total = Count()
    print("\n=== summary")
    for r in results:
        total += r.count
        cases = f"{r.count.passed:6d} passed {r.count.failed:4d} failed"
        mark = "ok    " if r.ok else "FAILED"
        print(f"{f'{r.part}: {r.step}':{width}}  {mark} {r.seconds:7.1f} s {cases}")
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return total.failed == 0


def test(args: argparse.Namespace) -> int:
    """Runs the chosen parts, each whatever came of the others."""
    chosen = [name for name in PARTS if name in args.part] if args.part else list(PARTS)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="jax_fabric_test_") as scratch:
        context = Context(Path(scratch), args.soak, args.seeds)
        for name in chosen:
            for step in PARTS[name](context):
                results.append(run_step(name, step, context.step_timeout_s))
                if step.essential and not results[-1].ok:
                    break
        # Never leave a server behind: CI waits for what a run has started.
        with contextlib.suppress(OSError):
            subprocess.run([bazel(), "shutdown"], cwd=ROOT, stdin=subprocess.DEVNULL)
    return 0 if print_summary(results) else 1


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="scripts/_helpers.py")
    commands = parser.add_subparsers(required=True)

    sub = commands.add_parser("requirements", help="print what .venv gets")
    sub.set_defaults(run=lambda _: print("\n".join(requirements())) or 0)

    sub = commands.add_parser(
        "test",
        prog="scripts/test",
        description="Sets the machine up and runs everything that must be green.",
        epilog="parts: "
        + "; ".join(f"{name}: {(part.__doc__ or '').rstrip('.')}" for name, part in PARTS.items()),
    )
    sub.add_argument(
        "--part",
        action="extend",
        nargs="+",
        choices=list(PARTS),
        metavar="PART",
        help="run these parts only (default: all)",
    )
    sub.add_argument(
        "--soak", action="store_true", help="long versions of the tests (JAX_FABRIC_SOAK=1)"
    )
    sub.add_argument(
        "--seeds",
        metavar="FIRST-END",
        help="tests that draw programs by seed take these, END not among them: a soak in slices, "
        "each of which begins where the last one ended (JAX_FABRIC_SEEDS)",
    )
    sub.set_defaults(run=test)

    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
