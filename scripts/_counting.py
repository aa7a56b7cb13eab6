"""How many test cases passed and failed, by the reports that tests write."""

from __future__ import annotations

import dataclasses
import json
import urllib.parse
import xml.etree.ElementTree as ElementTree
from pathlib import Path


@dataclasses.dataclass
class Count:
    """Test cases of one step."""

    passed: int = 0
    failed: int = 0

    def __iadd__(self, other: Count) -> Count:
        """Adds another step's cases."""
        self.passed += other.passed
        self.failed += other.failed
        return self


def count_junit(path: Path) -> Count:
    """Counts a junit file of GoogleTest, Bazel or pytest. Skipped cases are neither."""
    count = Count()
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            count.failed += 1
        elif case.find("skipped") is None and case.get("status") != "notrun":
            count.passed += 1
    return count


def count_build_events(path: Path) -> Count:
    """Counts the cases of a Bazel run, from the test.xml of each test that it names as its own.

    Not by a search in bazel-testlogs: results of tests that are long gone lie there too.
    """
    last_attempt: dict[tuple, tuple[int, dict]] = {}
    for line in path.read_text().splitlines():
        event = json.loads(line)
        identity = event.get("id", {}).get("testResult")
        if identity is None or "testResult" not in event:
            continue
        key = (identity["label"], identity.get("run"), identity.get("shard"))
        attempt = identity.get("attempt", 1)
        if attempt >= last_attempt.get(key, (0, {}))[0]:
            last_attempt[key] = (attempt, event["testResult"])

    total = Count()
    for _, result in last_attempt.values():
        files = {f["name"]: f.get("uri", "") for f in result.get("testActionOutput", [])}
        path = Path(urllib.parse.unquote(urllib.parse.urlparse(files.get("test.xml", "")).path))
        cases = count_junit(path) if path.is_file() else Count()
        passed = result.get("status") == "PASSED"
        if not passed and cases.failed == 0:
            cases.failed = 1  # died or timed out between two cases
        elif passed and cases.passed + cases.failed == 0:
            cases.passed = 1  # a test without a list of cases
        total += cases
    return total


def count_demo(path: Path) -> Count:
    """Counts the checks of a demonstration, from what its --json wrote."""
    passed = [check["passed"] for check in json.loads(path.read_text())["checks"]]
    return Count(passed.count(True), passed.count(False))
