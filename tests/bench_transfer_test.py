"""``jax-fabric bench transfer``: rows that are valid, NIXL that may be missing, and the command."""

import dataclasses
import json
import stat

import numpy as np
import pytest

from jax_fabric.bench import nixl, rows, transfer
from jax_fabric.bench.transfer_config import TransferBenchConfig
from jax_fabric.bench.transfer_sides import Measured
from jax_fabric.cli import main as cli

SMALL = TransferBenchConfig(
    write_mib=(1,),
    page_kib=(1, 64),
    large_batch_mib=2,
    repetitions=2,
    round_trips=20,
)


class TestConfig:
    @pytest.mark.parametrize(
        "change, message",
        [
            ({"repetitions": 0}, "repetitions is 0"),
            ({"write_mib": ()}, "write_mib is"),
            ({"page_kib": (0,)}, "page_kib is"),
            ({"page_kib": (2048,)}, "must not exceed small_batch_mib"),
            ({"peers": ("tin_cans",)}, "known: nixl"),
        ],
    )
    def test_errors_name_the_value(self, change, message):
        with pytest.raises(ValueError, match=message):
            TransferBenchConfig(**change)


class TestNixl:
    def test_without_environment(self, tmp_path):
        assert not nixl.available(tmp_path)
        with pytest.raises(nixl.NixlError, match="benchmarks/peers/setup nixl"):
            nixl.Nixl(SMALL, tmp_path)

    @pytest.mark.parametrize(
        "script, message",
        [("exit 3", "NIXL failed"), ("sleep 60", "did not answer within 0.4 s")],
    )
    def test_one_that_does_not_work(self, script, message, tmp_path):
        python = nixl.interpreter(tmp_path)
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\necho out of luck >&2\nexec {script}\n")
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        config = dataclasses.replace(SMALL, timeout_s=0.2)
        with pytest.raises(nixl.NixlError, match=message) as caught:
            nixl.Nixl(config, tmp_path)
        assert "out of luck" in str(caught.value)


class FakeNixl:
    """Twice as slow as light; what the rows need of the peer where it is not installed."""

    def writes_s(self, nbytes, count):
        return nbytes * count / 1e9

    def pages_s(self, nbytes, order, count):
        return len(order) * count / 1e6

    def round_trips_s(self, nbytes, rounds):
        return [4e-6] * rounds


@pytest.fixture(scope="module")
def measured():
    with Measured(SMALL) as sides:
        yield sides


class TestRun:
    def test_rows(self, measured):
        found = transfer.run(SMALL, measured, FakeNixl())
        cases = rows.by_case(found)
        assert [case.split(",")[0] for case in cases] == [
            "single writes of 1 MiB",
            *["paged writes"] * 4,
            "one way between two processes",
            "from the call to the post",
        ]
        for each in found:
            assert each.bench == "transfer"
            assert 0 < each.min <= each.median <= each.max
        timed = {(each.case, each.metric, each.peer): each for each in found}
        rate = timed["single writes of 1 MiB", "rate", "NIXL"]
        theirs = timed["single writes of 1 MiB", "rate" + rows.OF_THE_PEER, "NIXL"]
        assert theirs.median == 1.0
        assert 0.99 * rate.min <= rate.ratio <= 1.01 * rate.max  # more is better
        case = "one way between two processes"
        floor = timed[case, "immediate", "two processes on a shared word"]
        assert floor.unit == "us" and floor.ratio is not None
        late = timed[case, "write of 64 bytes", "NIXL"]
        assert 0.99 * 2.0 / late.max <= late.ratio <= 1.01 * 2.0 / late.min  # less is better

    def test_pages_are_compared(self, measured, monkeypatch):
        monkeypatch.setattr(measured, "pages_s", lambda *_: 0.0)
        with pytest.raises(RuntimeError, match="wrong bytes"):
            measured.check_pages(1024, np.arange(7))


class TestCommand:
    def test_quick_run(self, tmp_path, capsys):
        path = tmp_path / "rows.json"
        flags = ["--quick", "--repetitions=1", "--round-trips=20"]
        environments = f"--environments={tmp_path}"
        assert cli.main(["bench", "transfer", *flags, environments, f"--json={path}"]) == 0
        assert "benchmarks/peers/setup nixl" in capsys.readouterr().out
        found = json.loads(path.read_text())
        fields = [field.name for field in dataclasses.fields(rows.Row)]
        assert all(list(each) == fields for each in found)
        assert {each["peer"] for each in found} >= {"memcpy", "two processes on a shared word"}

    def test_asked_for_a_peer_that_is_missing(self, tmp_path, capsys):
        command = ["bench", "transfer", "--quick", "--peer=nixl", f"--environments={tmp_path}"]
        assert cli.main(command) == 1
        assert "benchmarks/peers/setup nixl" in capsys.readouterr().out

    @pytest.mark.parametrize(
        "argument, message",
        [
            ("--peer=tin_cans", "invalid choice"),
            ("--repetitions=0", "repetitions is 0"),
            ("--json=/no/such/folder/x.json", "there is no folder"),
        ],
    )
    def test_wrong_arguments(self, argument, message, capsys):
        with pytest.raises(SystemExit) as exit_:
            cli.main(["bench", "transfer", argument])
        assert exit_.value.code == 2
        assert message in capsys.readouterr().err
