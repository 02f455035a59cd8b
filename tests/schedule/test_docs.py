"""docs/schedule.md explains every field and name (tests/docs runs its code)."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "schedule.md").read_text()


def test_every_field_of_the_configuration_is_explained():
    from dataclasses import fields

    from tvm_hopper.schedule import MatmulConfig

    explained = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert set(explained) == {field.name for field in fields(MatmulConfig)}


def test_every_public_name_is_mentioned():
    from tvm_hopper import schedule

    assert [n for n in schedule.__all__ if n not in TEXT] == []


def test_every_field_of_the_memory_bound_configurations_is_explained():
    from dataclasses import fields

    from tvm_hopper import schedule as hs

    page = (Path(__file__).parents[2] / "docs" / "memory_bound.md").read_text()
    first_cells = " ".join(re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE))
    for config in (hs.RowReductionConfig, hs.PointwiseConfig, hs.ColumnReductionConfig):
        assert [f.name for f in fields(config) if f"`{f.name}`" not in first_cells] == []
