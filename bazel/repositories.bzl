"""The local repositories for WORKSPACE users (Bazel 4.2 to 8)."""

load("//bazel:local_repos.bzl", "LOCAL_REPOSITORIES")

# Small stand-ins that re-export Bazel's native rules, so that nothing is downloaded. BUILD files
# load from rules_cc and rules_python because Bazel 9 demands it.
_STAND_INS = {
    "rules_cc": {
        "cc/BUILD.bazel": "exports_files(glob([\"*.bzl\"]))\n",
        "cc/defs.bzl": """\
cc_library = native.cc_library
cc_binary = native.cc_binary
cc_test = native.cc_test
cc_import = native.cc_import
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
""",
    },
    "rules_python": {
        "python/BUILD.bazel": "exports_files(glob([\"*.bzl\"]))\n",
        "python/defs.bzl": """\
load("@bazel_tools//tools/python:toolchain.bzl", _pair = "py_runtime_pair")

py_library = native.py_library
py_binary = native.py_binary
py_test = native.py_test
py_runtime = native.py_runtime
py_runtime_pair = _pair
""",
    },
    # @bazel_tools//tools/jdk loads it when anything touches a Java toolchain; we never use it.
    "rules_java": {
        "java/BUILD.bazel": "",
        "java/defs.bzl": """\
java_import = native.java_import
java_runtime = native.java_runtime
java_toolchain = native.java_toolchain
java_binary = native.java_binary
java_library = native.java_library
""",
    },
}

def _stand_in_impl(ctx):
    for path, text in _STAND_INS[ctx.attr.kind].items():
        ctx.file(path, text)
    ctx.file("BUILD.bazel", "")
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)

_stand_in = repository_rule(implementation = _stand_in_impl, attrs = {"kind": attr.string()})

def _no_coverage_tools_impl(ctx):
    # Every test target of Bazel 4 depends on these two, and would download them.
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name)
    ctx.file("BUILD.bazel", """\
package(default_visibility = ["//visibility:public"])

[sh_binary(name = n, srcs = ["none.sh"]) for n in ["coverage_report_generator", "lcov_merger"]]
""")
    ctx.file("none.sh", "#!/bin/sh\nexit 0\n", executable = True)

_no_coverage_tools = repository_rule(implementation = _no_coverage_tools_impl)

def jax_fabric_repositories():
    """Defines what is not defined yet: a workspace that has the real rules_cc keeps it."""
    for name in _STAND_INS:
        if not native.existing_rule(name):
            _stand_in(name = name, kind = name)
    if not native.existing_rule("remote_coverage_tools"):
        _no_coverage_tools(name = "remote_coverage_tools")
    for name, rule in LOCAL_REPOSITORIES.items():
        if not native.existing_rule(name):
            rule(name = name)
