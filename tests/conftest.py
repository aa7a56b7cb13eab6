"""All Python tests run over 8 CPU devices."""

import signal
import sys
from pathlib import Path

from jax_fabric.testing.environment import prepare_cpu

prepare_cpu(8)

# What tests share lies beside them; importlib mode of pytest does not put that folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

# A shell that starts pytest in the background has it ignore Ctrl-C, and all that pytest starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
