"""Builds the extension with Bazel; setuptools only packages what Bazel built.

Environment variables (docs/building.md has the rest):

BAZEL                  The bazel to run. Default: bazel, then bazelisk, from PATH.
JAX_FABRIC_CUDA        1, 0 or auto (default): the CUDA kernels; auto: if there is an nvcc.
JAX_FABRIC_BAZEL_ARGS  More arguments for "bazel build", e.g. --disk_cache=/var/cache/bazel
"""

import contextlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PACKAGE, LIBRARY = "jax_fabric", "_core.abi3.so"


def find_bazel() -> str:
    """Returns the path of the bazel to run, or stops with an instruction."""
    for name in (os.environ.get("BAZEL"), "bazel", "bazelisk"):
        if name and (path := shutil.which(name)):
            return path
    raise SystemExit(
        "jax_fabric is built by Bazel and none was found. Debian and Ubuntu: apt-get install "
        "bazel-bootstrap; elsewhere: install bazelisk, or set BAZEL to the path of one."
    )


def package_folder(name: str) -> str:
    """Returns where the Python package `name` lies; its headers are what the build needs."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        raise SystemExit(f"building jax_fabric needs the Python package {name}")
    return str(Path(spec.origin).parent)


def want_cuda() -> bool:
    """Reads JAX_FABRIC_CUDA."""
    choice = os.environ.get("JAX_FABRIC_CUDA", "auto")
    if choice not in ("0", "1", "auto"):
        raise SystemExit(f"JAX_FABRIC_CUDA is {choice!r}; it must be 0, 1 or auto")
    if choice != "auto":
        return choice == "1"
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return (home / "bin" / "nvcc").exists() or shutil.which("nvcc") is not None


def build_options() -> list[str]:
    """Returns the options of "bazel build"."""
    headers = {
        "PYTHON_BIN_PATH": sys.executable,
        "JAX_FABRIC_JAXLIB": package_folder("jaxlib"),
        "JAX_FABRIC_NANOBIND": package_folder("nanobind"),
        "JAX_FABRIC_PYTHON_INCLUDE": sysconfig.get_paths()["include"],
    }
    options = ["--color=no", "--curses=no", "--noshow_progress"]
    options += [f"--repo_env={name}={value}" for name, value in headers.items()]
    if not (ROOT / "user.bazelrc").exists():
        options.append("--no//:werror")  # not a developer's machine: its compiler may be news to us
    if want_cuda():
        options.append("--config=cuda")
    return options + shlex.split(os.environ.get("JAX_FABRIC_BAZEL_ARGS", ""))


@contextlib.contextmanager
def bazel_command():
    """Gives the start of a bazel command line, and cleans up behind it.

    pip builds in the source folder itself, so Bazel's output base, its server and every cached
    action are shared with a developer's own "bazel build". Sources that were unpacked to a
    temporary folder get an output base of their own, which goes when the build is done.
    """
    temporary = Path(tempfile.gettempdir()).resolve() in ROOT.parents
    if not temporary or (ROOT / ".git").exists():
        yield [find_bazel()]
        return
    base = tempfile.mkdtemp(prefix="jax_fabric_bazel_")
    command = [find_bazel(), f"--output_base={base}"]
    try:
        yield command
    finally:
        subprocess.run([*command, "clean", "--expunge", "--color=no"], cwd=ROOT)
        shutil.rmtree(base, ignore_errors=True)


class BazelBuildExt(build_ext):
    """build_ext by Bazel."""

    def build_extension(self, ext):
        """Builds //jax_fabric:_core.abi3.so and copies it to where setuptools wants it."""
        # pip's build isolation has a new temporary PYTHONPATH each time; the options name what it
        # would show.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with bazel_command() as bazel:
            # A link of our own to the output: another output base may take over bazel-bin.
            (ROOT / "build").mkdir(exist_ok=True)
            links = "--symlink_prefix=build/pip-"
            build = [*bazel, "build", f"//{PACKAGE}:{LIBRARY}", links, *build_options()]
            print("running:", shlex.join(build), flush=True)
            subprocess.run(build, cwd=ROOT, env=env, check=True)
            target = Path(self.get_ext_fullpath(ext.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            # A running process may have the old file mapped: replace it, never rewrite it.
            target.unlink(missing_ok=True)
            shutil.copyfile(ROOT / "build" / "pip-bin" / PACKAGE / LIBRARY, target)
            target.chmod(0o755)


setup(
    ext_modules=[Extension(f"{PACKAGE}._core", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": BazelBuildExt},
)
