"""The code of docs/schedule.md runs as printed, from top to bottom."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "schedule.md").read_text()


def test_every_code_block_runs():
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names = {}
    for block in blocks:
        exec(compile(block, "docs/schedule.md", "exec"), names)
    assert {"whole", "steps", "bare", "last_stage"} <= set(names)


def test_every_field_of_the_configuration_is_explained():
    from dataclasses import fields

    from tvm_hopper.schedule import MatmulConfig

    explained = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert set(explained) == {field.name for field in fields(MatmulConfig)}


def test_every_public_name_is_mentioned():
    from tvm_hopper import schedule

    assert [n for n in schedule.__all__ if n not in TEXT] == []
