"""All Python tests run over 8 CPU devices."""

import os
import signal
import sys
from pathlib import Path

import jax

from jax_fabric.testing.environment import prepare_cpu

# Most of what tests do is compile. XLA's own passes stay as users have them, which calls of the
# fabric must survive; only LLVM is told to hurry, which takes a third off the whole run.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
prepare_cpu(8)
# Now, before a test that plays with the environment makes JAX start with another one.
assert len(jax.devices()) == 8

# What tests share lies beside them; importlib mode of pytest does not put that folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

# A shell that starts pytest in the background has it ignore Ctrl-C, and all that pytest starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
