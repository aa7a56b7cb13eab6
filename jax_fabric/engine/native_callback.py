"""Watchers' callbacks that are no Python functions."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

from jax_fabric.arguments import MAX_U64, integer
from jax_fabric.errors import InvalidArgument


@dataclasses.dataclass(frozen=True)
class NativeCallback:
    """A C function in the place of a watcher's Python callback: no call waits for the GIL.

    ``void function(uint64_t old_value, uint64_t new_value, void* context)``. It runs on the thread
    of the watchers, and must neither throw nor keep that thread for long: all watchers of the
    engine or fabric wait for it.

    Attributes:
      function: a function of a ``ctypes`` library, or an address. A Python function that
        ``ctypes`` has wrapped takes the GIL, as a plain one does, and should be given plainly.
      context: an address, passed on as it is.

    Function and context must be valid until the watcher's ``close`` has returned: dropping the
    watcher waits for no call that is running.

    Raises:
      InvalidArgument: an attribute is not that.
    """

    function: Any
    context: int = 0

    def __post_init__(self) -> None:
        """Checks the attributes."""
        if not isinstance(self.function, ctypes._CFuncPtr):
            integer("function", self.function, least=1)
        elif not self.address:
            raise InvalidArgument(f"function={self.function!r}: is a null pointer")
        integer("context", self.context, most=MAX_U64)

    @property
    def address(self) -> int:
        """Of the function."""
        if isinstance(self.function, ctypes._CFuncPtr):
            return ctypes.cast(self.function, ctypes.c_void_p).value or 0
        return int(self.function)

    def __call__(self, old: int, new: int) -> None:
        """Calls it from Python, for tests of callbacks."""
        kind = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
        kind(self.address)(old, new, self.context)


def native_function(callback: Any) -> tuple[int, int]:
    """Function and context of a callback for the extension module; zeros: a Python function."""
    if not isinstance(callback, NativeCallback):
        return 0, 0
    return callback.address, callback.context
