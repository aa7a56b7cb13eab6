"""script_binary: makes a checked-in script runnable as a target.

Bazel 9 has no native sh_binary and Bazel 4 no rules_shell; this needs neither.
"""

def _impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = out, target_file = ctx.file.src, is_executable = True)
    return [DefaultInfo(
        executable = out,
        files = depset([out]),
        runfiles = ctx.runfiles(files = [out, ctx.file.src] + ctx.files.data),
    )]

script_binary = rule(
    implementation = _impl,
    attrs = {
        "src": attr.label(allow_single_file = True, mandatory = True),
        "data": attr.label_list(allow_files = True),
    },
    executable = True,
)
