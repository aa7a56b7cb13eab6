"""jf_cc_library, jf_cc_binary and jf_cc_test: the rules of rules_cc with this project's options.

Everything that is not named here passes through to the underlying rule unchanged.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load("//bazel:copts.bzl", "JF_COPTS", "JF_LINKOPTS")
load("//bazel:unity.bzl", "unity_source")

_UNITY_ENABLED = str(Label("//:unity_enabled"))

def _unity(name, srcs, testonly):
    """Returns srcs and textual headers of a library: with --//:unity its .cc files are compiled as one."""
    if type(srcs) != "list":
        return srcs, []  # a select: what is in it is not known here
    sources = [each for each in srcs if each.endswith(".cc") and ":" not in each]
    if len(sources) < 2:
        return srcs, []
    unity_source(
        name = name + "_unity",
        testonly = testonly,
        includes = [native.package_name() + "/" + each for each in sources],
    )
    headers = [each for each in srcs if each not in sources]
    return (
        select({_UNITY_ENABLED: [":" + name + "_unity"] + headers, "//conditions:default": srcs}),
        select({_UNITY_ENABLED: sources, "//conditions:default": []}),
    )

def jf_cc_library(name, srcs = [], textual_hdrs = [], copts = [], linkopts = [], **kwargs):
    srcs, included = _unity(name, srcs, kwargs.get("testonly", False))
    cc_library(
        name = name,
        srcs = srcs,
        textual_hdrs = textual_hdrs + included,
        copts = JF_COPTS + copts,
        linkopts = JF_LINKOPTS + linkopts,
        **kwargs
    )

def jf_cc_binary(name, copts = [], linkopts = [], **kwargs):
    cc_binary(
        name = name,
        copts = JF_COPTS + copts,
        linkopts = JF_LINKOPTS + linkopts,
        **kwargs
    )

def jf_cc_test(name, size = "small", copts = [], linkopts = [], deps = [], **kwargs):
    """A GoogleTest program with its main().

    Args:
      name: of the target.
      size: as of cc_test; "small" lets 60 seconds.
      copts: added to JF_COPTS.
      linkopts: added to JF_LINKOPTS.
      deps: gtest_main (which brings gmock's headers where they are installed) is added.
      **kwargs: go to cc_test. The tag "threads" brings a test into --config=tsan, "nosan" keeps it out of
          --config=asan.
    """
    cc_test(
        name = name,
        size = size,
        copts = JF_COPTS + copts,
        linkopts = JF_LINKOPTS + linkopts,
        deps = deps + ["@jax_fabric_gtest//:gtest_main"],
        **kwargs
    )

def jf_fuzz_test(name, runs, corpus, srcs = [], deps = [], **kwargs):
    """A fuzz target: as a test in CI, and for libFuzzer (scripts/fuzz).

    Args:
      name: of the test, NAME_fuzz. NAME_fuzz_libfuzzer is the program for libFuzzer: manual, needs clang.
      runs: inputs that the test tries besides the corpus, from a fixed seed.
      corpus: a folder of this package with inputs.
      srcs: with LLVMFuzzerTestOneInput, if it is not in deps.
      deps: of srcs.
      **kwargs: go to jf_cc_test.
    """
    target = name + "_target"
    jf_cc_library(
        name = target,
        testonly = True,
        srcs = srcs,
        deps = deps,
        alwayslink = True,
    )
    jf_cc_test(
        name = name,
        args = [
            "--runs=%d" % runs,
            "--corpus=%s/%s" % (native.package_name(), corpus),
        ],
        data = native.glob([corpus + "/**"]),
        deps = [
            ":" + target,
            Label("//csrc/fuzz:fuzz_test_main"),
        ],
        **kwargs
    )
    jf_cc_binary(
        name = name + "_libfuzzer",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":" + target],
    )
