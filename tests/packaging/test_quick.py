"""`make quick` picks the tests that are closest to a change."""

from __future__ import annotations

from tests.quick import select_tests

EVERY = [
    "tests/docs/test_links.py",
    "tests/packaging/test_layout.py",
    "tests/sim/test_wgmma.py",
    "tests/transforms/wgmma/test_lower_wgmma.py",
    "tests/transforms/memory_bound/test_split_vector_tails.py",
]


def test_changed_tests_come_first_then_the_module_s_then_the_folder_s() -> None:
    changed = ["transforms/memory_bound/split_vector_tails.py", "tests/sim/test_wgmma.py"]
    assert select_tests(changed, EVERY) == [
        "tests/sim/test_wgmma.py",
        "tests/transforms/memory_bound/test_split_vector_tails.py",
        "tests/transforms/wgmma/test_lower_wgmma.py",
    ]


def test_documents_are_tested_by_theirs() -> None:
    assert select_tests(["README.md"], EVERY) == ["tests/docs/test_links.py"]
    assert select_tests(["LICENSE"], EVERY) == []
