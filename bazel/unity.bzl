"""unity_source: one C++ source that includes others.

A library of many small files takes most of its compilation for the headers and the templates that they
share: as one file, //csrc/engine takes less than a third of the time.
"""

def _impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".cc")
    ctx.actions.write(out, "".join(['#include "%s"\n' % each for each in ctx.attr.includes]))
    return [DefaultInfo(files = depset([out]))]

unity_source = rule(
    implementation = _impl,
    attrs = {"includes": attr.string_list(mandatory = True)},
)
