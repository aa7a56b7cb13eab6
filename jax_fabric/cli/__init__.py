"""The command ``jax-fabric``. Each subcommand is a module, listed in :mod:`jax_fabric.cli.main`."""
