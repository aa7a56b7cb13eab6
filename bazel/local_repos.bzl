"""Repository rules for what is installed on this machine: headers, interpreter, CUDA toolkit.

They use no network and no third-party Starlark, so they work in Bazel 4.2 to 9, and they never fail
while loading for a missing dependency: they emit a target that fails with an instruction when
something needs it. docs/building.md lists the environment variables.
"""

_SYSTEM_INCLUDES = ["/usr/include", "/usr/local/include"]

_LIBRARY_FOLDERS = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
]

_BUILD_HEAD = """\
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

"""

# Messages are echoed by a shell: no apostrophes.
_REFETCH = "; then run: bazel shutdown (it looks once for each start of its server)"

def _env(ctx, name):
    return ctx.os.environ.get(name, "").strip()

def _find(ctx, rel, roots):
    """The first of `roots` that contains `rel`, or "" when none does."""
    for root in roots:
        if root and ctx.path(root + "/" + rel).exists:
            return root
    return ""

def _under(home, folder):
    return [home + "/" + folder] if home else []

def _missing_target(name, message):
    """BUILD text of a cc_library that cannot be built, and says why."""
    return """\
genrule(
    name = "{name}_is_missing",
    outs = ["{name}_is_missing.h"],
    cmd = "echo 'jax_fabric: {message}' >&2; exit 1",
    tags = ["manual"],
)

cc_library(
    name = "{name}",
    hdrs = ["{name}_is_missing.h"],
    tags = ["manual"],
)

""".format(name = name, message = message)

def _header_target(name, defines = [], srcs = []):
    """BUILD text of a cc_library over the headers in the folder `name` of the repository."""
    return """\
cc_library(
    name = "{name}",
    srcs = {srcs},
    hdrs = glob(["{name}/**"]),
    defines = {defines},
    includes = ["{name}"],
)

""".format(name = name, defines = defines, srcs = srcs)

def _write(ctx, build):
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)
    ctx.file("BUILD.bazel", build)

# ---- Header-only libraries ---------------------------------------------------------------------

# fmt's functions, compiled once. Its header-only mode would compile them with every file that formats an
# error: 8 s a file in place of 2. Debian packages no static library to link into an extension. The list is
# that of fmt's own src/format.cc, for char (seen with fmt 9.1 and 10.1).
_FMT_SOURCE = """\
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);
#if FMT_VERSION >= 100000
template FMT_API void vformat_to(buffer<char>&, string_view, typename vformat_args<>::type, locale_ref);
#endif
}  // namespace detail
FMT_END_NAMESPACE
"""

# Only the one folder or file of each library is linked into the repository: /usr/include as a
# search path of its own would break #include_next of libstdc++.
_HEADERS = [
    struct(
        name = "expected",
        entry = "tl",
        probe = "tl/expected.hpp",
        package = "libexpected-dev",
        defines = [],
    ),
    struct(
        name = "fmt",
        entry = "fmt",
        probe = "fmt/format.h",
        package = "libfmt-dev",
        defines = [],
        source = _FMT_SOURCE,
    ),
    struct(
        name = "xxhash",
        entry = "xxhash.h",
        probe = "xxhash.h",
        package = "libxxhash-dev",
        defines = ["XXH_INLINE_ALL=1"],
    ),
]

def _headers_configure_impl(ctx):
    override = [p for p in _env(ctx, "JAX_FABRIC_INCLUDE_PATH").split(":") if p]
    build = _BUILD_HEAD
    for h in _HEADERS:
        root = _find(ctx, h.probe, override + _SYSTEM_INCLUDES)
        if root:
            ctx.symlink(root + "/" + h.entry, h.name + "/" + h.entry)
            source = getattr(h, "source", "")
            if source:
                ctx.file(h.name + ".cc", source)
            build += _header_target(h.name, h.defines, [h.name + ".cc"] if source else [])
        else:
            build += _missing_target(
                h.name,
                "no <%s>: apt-get install %s, or put its folder on JAX_FABRIC_INCLUDE_PATH%s" % (
                    h.probe,
                    h.package,
                    _REFETCH,
                ),
            )
    _write(ctx, build)

headers_configure = repository_rule(
    implementation = _headers_configure_impl,
    environ = ["JAX_FABRIC_INCLUDE_PATH"],
    local = True,
    configure = True,
)

# ---- libsodium ---------------------------------------------------------------------------------

def _sodium_configure_impl(ctx):
    home = _env(ctx, "SODIUM_HOME")
    include = _find(ctx, "sodium.h", _under(home, "include") + _SYSTEM_INCLUDES)
    lib = _find(ctx, "libsodium.a", _under(home, "lib") + _LIBRARY_FOLDERS)
    if not include or not lib:
        _write(ctx, _BUILD_HEAD + _missing_target(
            "sodium",
            "libsodium (with libsodium.a) not found: apt-get install libsodium-dev, or set SODIUM_HOME" + _REFETCH,
        ))
        return
    ctx.symlink(include + "/sodium.h", "include/sodium.h")
    ctx.symlink(include + "/sodium", "include/sodium")

    # libsodium compiles its static library with -fPIC, too; the name is how Bazel knows. Linked statically, so that
    # the wheel needs nothing of the machine.
    ctx.symlink(lib + "/libsodium.a", "libsodium.pic.a")
    _write(ctx, _BUILD_HEAD + """\
cc_library(
    name = "sodium",
    srcs = ["libsodium.pic.a"],
    hdrs = glob(["include/**"]),
    includes = ["include"],
    linkopts = ["-pthread"],
)
""")

sodium_configure = repository_rule(
    implementation = _sodium_configure_impl,
    environ = ["SODIUM_HOME"],
    local = True,
    configure = True,
)

# ---- RDMA --------------------------------------------------------------------------------------

def _rdma_configure_impl(ctx):
    # Headers only. The libraries themselves are opened at run time.
    build = _BUILD_HEAD
    for name, home_variable, entry, probe, package, define in [
        (
            "libfabric_headers",
            "LIBFABRIC_HOME",
            "rdma",
            "rdma/fabric.h",
            "libfabric-dev",
            "JF_HAVE_LIBFABRIC=1",
        ),
        (
            "libibverbs_headers",
            "RDMA_CORE_HOME",
            "infiniband",
            "infiniband/verbs.h",
            "libibverbs-dev",
            "JF_HAVE_LIBIBVERBS=1",
        ),
    ]:
        roots = (_under(_env(ctx, home_variable), "include") + _SYSTEM_INCLUDES +
                 ["/opt/amazon/efa/include"])
        root = _find(ctx, probe, roots)
        if _env(ctx, "JAX_FABRIC_RDMA") == "0":
            build += "cc_library(name = \"%s\")\n\n" % name
        elif root:
            ctx.symlink(root + "/" + entry, name + "/" + entry)
            build += _header_target(name, [define])
        else:
            build += _missing_target(
                name,
                "no <%s>: apt-get install %s, or set %s, or set JAX_FABRIC_RDMA=0 to build without%s" % (
                    probe,
                    package,
                    home_variable,
                    _REFETCH,
                ),
            )
    wanted = _env(ctx, "JAX_FABRIC_RDMA") != "0"
    ctx.file("defs.bzl", "LIBFABRIC_WANTED = %s\nLIBIBVERBS_WANTED = %s\n" % (wanted, wanted))
    _write(ctx, build)

rdma_configure = repository_rule(
    implementation = _rdma_configure_impl,
    environ = ["JAX_FABRIC_RDMA", "LIBFABRIC_HOME", "RDMA_CORE_HOME"],
    local = True,
    configure = True,
)

# ---- GoogleTest --------------------------------------------------------------------------------

def _gtest_configure_impl(ctx):
    home = _env(ctx, "GTEST_HOME")
    include = _find(ctx, "gtest/gtest.h", _under(home, "include") + _SYSTEM_INCLUDES)
    lib = _find(ctx, "libgtest_main.a", _under(home, "lib") + _LIBRARY_FOLDERS)
    if not include or not lib:
        _write(ctx, _BUILD_HEAD + _missing_target(
            "gtest_main",
            "GoogleTest not found: apt-get install libgtest-dev libgmock-dev, or set GTEST_HOME" +
            _REFETCH,
        ))
        return
    archives = ["libgtest_main.a", "libgtest.a"]
    ctx.symlink(include + "/gtest", "include/gtest")
    if _find(ctx, "gmock/gmock.h", [include]) and _find(ctx, "libgmock.a", [lib]):
        ctx.symlink(include + "/gmock", "include/gmock")
        archives = ["libgtest_main.a", "libgmock.a", "libgtest.a"]
    for archive in archives:
        ctx.symlink(lib + "/" + archive, archive)
    _write(ctx, _BUILD_HEAD + """\
cc_library(
    name = "gtest_main",
    srcs = {archives},
    hdrs = glob(["include/**"]),
    includes = ["include"],
    linkopts = ["-pthread"],
)
""".format(archives = archives))

gtest_configure = repository_rule(
    implementation = _gtest_configure_impl,
    environ = ["GTEST_HOME"],
    local = True,
    configure = True,
)

# ---- Python, jaxlib, nanobind ------------------------------------------------------------------

_PYTHON_PROBE = """
import importlib.util, os, sys, sysconfig

def folder(name):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return ""
    return os.path.dirname(spec.origin) if spec and spec.origin else ""

print("exe=" + sys.executable)
print("version=%d.%d" % sys.version_info[:2])
print("include=" + sysconfig.get_paths()["include"])
print("jaxlib=" + folder("jaxlib"))
print("nanobind=" + folder("nanobind"))
"""

_PYTHON_VARIABLES = ["PYTHON_BIN_PATH", "VIRTUAL_ENV", "PYTHONPATH"]

def _python_exe(ctx):
    """$PYTHON_BIN_PATH, else the active $VIRTUAL_ENV's, else python3 on PATH, else ""."""
    if _env(ctx, "PYTHON_BIN_PATH"):
        return _env(ctx, "PYTHON_BIN_PATH")
    if _env(ctx, "VIRTUAL_ENV"):
        return _env(ctx, "VIRTUAL_ENV") + "/bin/python3"
    found = ctx.which("python3")
    return str(found) if found else ""

def _probe_python(ctx, exe):
    result = ctx.execute([exe, "-c", _PYTHON_PROBE])
    if result.return_code != 0:
        return {}
    pairs = [line.partition("=") for line in result.stdout.splitlines()]
    return {key: value for key, _, value in pairs}

def _python_configure_impl(ctx):
    exe = _python_exe(ctx)
    found = _probe_python(ctx, exe) if exe else {}
    include = _env(ctx, "JAX_FABRIC_PYTHON_INCLUDE") or found.get("include", "")
    jaxlib = _env(ctx, "JAX_FABRIC_JAXLIB") or found.get("jaxlib", "")
    nanobind = _env(ctx, "JAX_FABRIC_NANOBIND") or found.get("nanobind", "")

    missing = []
    if not found:
        missing.append("no working Python at %s: set PYTHON_BIN_PATH" % (exe or "python3"))
    if not include or not ctx.path(include + "/Python.h").exists:
        missing.append("no Python.h: apt-get install python3-dev")
    if not jaxlib:
        missing.append("no jaxlib: %s -m pip install jax" % exe)
    if not nanobind:
        missing.append("no nanobind: %s -m pip install nanobind nanobind-backend" % exe)

    if include and ctx.path(include).exists:
        ctx.symlink(include, "python_include")

        # Debian's pyconfig.h includes <TRIPLET/pythonX.Y/pyconfig.h>, a sibling of this folder.
        parent, _, base = include.rpartition("/")
        for triplet in ["x86_64-linux-gnu", "aarch64-linux-gnu"]:
            folder = "%s/%s/%s" % (parent, triplet, base)
            if ctx.path(folder).exists:
                ctx.symlink(folder, "python_multiarch/%s/%s" % (triplet, base))
    if jaxlib:
        ctx.symlink(jaxlib + "/include", "jaxlib_include")
    if nanobind:
        ctx.symlink(nanobind, "nanobind")

    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)
    ctx.template("BUILD.bazel", ctx.attr._template, {
        "%{exe}": found.get("exe", exe or "/usr/bin/python3"),
        "%{version}": found.get("version", "unknown"),
        "%{required}": "\":missing.h\"" if missing else "",
        "%{message}": "; ".join(missing) + _REFETCH,
    }, executable = False)

python_configure = repository_rule(
    implementation = _python_configure_impl,
    attrs = {
        "_template": attr.label(default = "//bazel:python.BUILD.tpl", allow_single_file = True),
    },
    environ = _PYTHON_VARIABLES + [
        "JAX_FABRIC_JAXLIB",
        "JAX_FABRIC_NANOBIND",
        "JAX_FABRIC_PYTHON_INCLUDE",
    ],
    local = True,
    configure = True,
)

# ---- libfabric with the provider "efa" -----------------------------------------------------------

# Debian 12's libfabric is too old for what the EFA domain needs of that provider. The wheel of MPICH carries a newer one.
_MPICH = "mpich==5.0.2"

_MPICH_PROBE = """
import importlib.metadata, os, platform
print("machine=" + platform.machine())
try:
    for file in importlib.metadata.distribution("mpich").files or ():
        if file.name == "libfabric.so.1":
            print("home=" + os.path.dirname(os.path.realpath(file.locate())))
except importlib.metadata.PackageNotFoundError:
    pass
"""

# For these the wheel exists.
_MPICH_MACHINES = ["x86_64", "aarch64"]

def _efa_provider_configure_impl(ctx):
    exe = _python_exe(ctx)
    found = {}
    if exe:
        result = ctx.execute([exe, "-c", _MPICH_PROBE])
        pairs = [line.partition("=") for line in result.stdout.splitlines()]
        found = {key: value for key, _, value in pairs}
    home = _find(ctx, "libfabric.so.1", [_env(ctx, "EFA_LIBFABRIC_HOME"), found.get("home", "")])
    wanted = (_env(ctx, "JAX_FABRIC_RDMA") != "0" and
              (home != "" or found.get("machine", "x86_64") in _MPICH_MACHINES))
    ctx.file("defs.bzl", "EFA_PROVIDER_WANTED = %s\n" % wanted)
    if not home:
        _write(ctx, _BUILD_HEAD + _missing_target(
            "efa_provider",
            "no libfabric with the provider efa: %s -m pip install %s, or set EFA_LIBFABRIC_HOME%s" % (
                exe or "python3",
                _MPICH,
                _REFETCH,
            ),
        ))
        return
    ctx.file("efa_provider/efa_provider.h", """\
// Where this machine has a libfabric with the provider "efa".
#pragma once

inline constexpr char kEfaLibfabric[] = "{home}/libfabric.so.1";
inline constexpr char kEfaProviders[] = "{home}/libfabric";  // FI_PROVIDER_PATH
""".format(home = home))
    _write(ctx, _BUILD_HEAD + _header_target("efa_provider"))

efa_provider_configure = repository_rule(
    implementation = _efa_provider_configure_impl,
    environ = _PYTHON_VARIABLES + ["EFA_LIBFABRIC_HOME", "JAX_FABRIC_RDMA"],
    local = True,
    configure = True,
)

# ---- CUDA --------------------------------------------------------------------------------------

# The toolkit as packages of PyPI (nvidia-cuda-nvcc and its companions) lies in the interpreter's
# site-packages.
_PYPI_CUDA_PROBE = """
import glob, importlib.util
spec = importlib.util.find_spec("nvidia")
for root in (spec.submodule_search_locations or []) if spec else []:
    for nvcc in sorted(glob.glob(root + "/cu1*/bin/nvcc"), reverse=True):
        print(nvcc[:-len("/bin/nvcc")])
"""

def _cuda_root(ctx):
    root = _find(ctx, "bin/nvcc", [_env(ctx, "CUDA_HOME"), "/usr/local/cuda", "/opt/cuda"])
    if root:
        return root
    nvcc = ctx.which("nvcc")
    if nvcc:
        return str(nvcc.realpath.dirname.dirname)
    exe = _python_exe(ctx)
    result = ctx.execute([exe, "-c", _PYPI_CUDA_PROBE]) if exe else None
    if result and result.return_code == 0 and result.stdout.strip():
        return result.stdout.splitlines()[0]
    return ""

def _cuda_configure_impl(ctx):
    root = _cuda_root(ctx)
    lib = _find(ctx, "libcudart_static.a", [
        root + "/" + folder
        for folder in ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"]
    ]) if root else ""
    if not lib:
        ctx.file("defs.bzl", "CUDA_FOUND = False\n\nNVCC = \"\"\n")
        _write(ctx, _BUILD_HEAD + _missing_target(
            "cudart",
            "no CUDA toolkit: set CUDA_HOME, or install one (docs/building.md)" +
            _REFETCH,
        ))
        return
    ctx.file("defs.bzl", "CUDA_FOUND = True\n\nNVCC = \"%s/bin/nvcc\"\n" % root)
    ctx.symlink(root + "/include", "include")
    ctx.symlink(lib + "/libcudart_static.a", "libcudart_static.a")

    # The static runtime finds the driver by dlopen: the result also loads where there is no GPU.
    _write(ctx, _BUILD_HEAD + """\
cc_library(
    name = "cudart",
    srcs = ["libcudart_static.a"],
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/*.h", "include/crt/*.hpp"]),
    includes = ["include"],
    linkopts = ["-ldl", "-lrt", "-pthread"],
)
""")

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME", "PATH"] + _PYTHON_VARIABLES,
    local = True,
    configure = True,
)

# ---- All of them -------------------------------------------------------------------------------

# Name -> rule. WORKSPACE (repositories.bzl) and MODULE.bazel (extensions.bzl) both read this.
LOCAL_REPOSITORIES = {
    "jax_fabric_cuda": cuda_configure,
    "jax_fabric_efa_provider": efa_provider_configure,
    "jax_fabric_gtest": gtest_configure,
    "jax_fabric_headers": headers_configure,
    "jax_fabric_python": python_configure,
    "jax_fabric_rdma": rdma_configure,
    "jax_fabric_sodium": sodium_configure,
}
