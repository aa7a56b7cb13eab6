"""dispatch and combine over several processes, against the oracle, bit by bit.

Each constellation is launched once; processes_programs.py has the checks.
"""

import functools
import os
from unittest import mock

import processes_programs as programs
import processes_testing
from absl.testing import absltest, parameterized

from jax_fabric.testing import launch

# processes, devices of each
WORLDS = ((2, 1), (3, 1), (4, 1), (2, 2))


expected = functools.cache(processes_testing.expected)


@functools.cache
def outcomes(processes: int, devices: int) -> tuple[dict[str, str], ...]:
    """Of every process: what went wrong in each check."""
    with mock.patch.dict(os.environ, {"XLA_FLAGS": processes_testing.FAST}):
        results = launch.run(
            programs.run_all,
            expected(processes * devices),
            processes=processes,
            local_devices=devices,
            timeout_s=300,
        )
    return tuple(result.value for result in results)


class ProcessesTest(parameterized.TestCase):
    @parameterized.parameters(
        *(
            (*world, check)
            for world in WORLDS
            for check in programs.CHECKS
            if check != "one_jitted_layer_called_independently"
        )
    )
    def test_is_right(self, processes, devices, check):
        for process, outcome in enumerate(outcomes(processes, devices)):
            self.assertEqual(outcome[check], "", f"process {process}")

    @parameterized.parameters(*WORLDS)
    def test_one_jitted_layer_called_independently(self, processes, devices):
        found = [
            outcome["one_jitted_layer_called_independently"]
            for outcome in outcomes(processes, devices)
        ]
        for error in found:
            self.assertNotIn("Traceback", error)  # wrong rows
        if any(found):
            # Somebody says what to do; where its message did not come, a rank names the absent one.
            self.assertTrue(any("after=" in error for error in found), found)
            for error in found:
                self.assertRegex(error, r"after=|waited 3 s for|waited .* for its turn")


if __name__ == "__main__":
    absltest.main()
