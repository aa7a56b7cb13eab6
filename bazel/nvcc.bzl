"""cuda_objects: .cu files to position-independent objects, one nvcc action each.

It needs no providers, so it works unchanged in Bazel 4.2 to 9: a cc_library takes the objects in
its srcs. That library must be `linkstatic`: as a shared object of its own it would lack the static
CUDA runtime. Tag both "manual" and reach them by a select on //:cuda_enabled.
"""

load("@jax_fabric_cuda//:defs.bzl", "CUDA_FOUND", "NVCC")

# With PTX for the last, which newer chips compile at load time.
DEFAULT_ARCHS = ["80", "90"]

def _gencode(arch):
    return "-gencode=arch=compute_{0},code=sm_{0}".format(arch)

def _cuda_objects_impl(ctx):
    if not CUDA_FOUND:
        fail("--config=cuda needs a CUDA toolkit: set CUDA_HOME, or see docs/building.md")
    workspace = ctx.label.workspace_root or "."  # external/... when another workspace uses us
    archs = ctx.attr.archs
    outs = []
    for src in ctx.files.srcs:
        stem = src.basename[:-len(src.extension) - 1]
        out = ctx.actions.declare_file("%s/%s.o" % (ctx.label.name, stem))
        args = ctx.actions.args()
        args.add_all(["-x", "cu", "-c", src, "-o", out])

        # nvcc names its temporary files after its process, which has the same number in every sandbox,
        # and /tmp is everybody's: two at a time took each other's away.
        args.add("--objdir-as-tempdir")
        args.add_all(["-std=c++20", "-O3", "-lineinfo", "-I", workspace])
        args.add_all(["-Xcompiler", "-fPIC", "--expt-relaxed-constexpr"])
        args.add_all(["-Werror", "all-warnings"])
        args.add_all([_gencode(arch) for arch in archs])
        args.add("-gencode=arch=compute_{0},code=compute_{0}".format(archs[-1]))
        args.add_all(ctx.attr.nvccopts)
        ctx.actions.run(
            executable = NVCC,
            arguments = [args],
            inputs = depset([src] + ctx.files.hdrs),
            outputs = [out],
            mnemonic = "Nvcc",
            progress_message = "nvcc %s" % src.short_path,
            use_default_shell_env = True,
        )
        outs.append(out)
    return [DefaultInfo(files = depset(outs))]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(
            allow_files = True,
            doc = "Every header that is included; those of other folders by filegroups.",
        ),
        "archs": attr.string_list(default = DEFAULT_ARCHS),
        "nvccopts": attr.string_list(),
    },
)
