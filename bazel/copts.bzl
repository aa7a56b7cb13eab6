"""Compiler and linker options of all C++ code of this project, in one place.

Headers of third parties arrive as system includes (`includes` of a cc_library), so the warnings
below speak of our own code only.
"""

# -Werror hangs on a flag: on in this workspace (.bazelrc), off for everyone who builds us as a
# dependency or by pip with a compiler we have not seen yet.
JF_COPTS = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
] + select({
    str(Label("//:werror_enabled")): ["-Werror"],
    "//conditions:default": [],
})

JF_LINKOPTS = ["-pthread"]

# Only for the extension's own sources; its version script (csrc/ffi/exports.lds) does the hiding.
# The libraries keep default visibility: cc_test links each cc_library as a shared object of its own
# by default, and would not find hidden symbols.
JF_EXTENSION_COPTS = [
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
]
