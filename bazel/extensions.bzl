"""The local repositories for bzlmod. Only MODULE.bazel loads this: Bazel 4 cannot."""

load("//bazel:local_repos.bzl", "LOCAL_REPOSITORIES")

def _impl(_ctx):
    for name, rule in LOCAL_REPOSITORIES.items():
        rule(name = name)

jax_fabric_local = module_extension(implementation = _impl)
