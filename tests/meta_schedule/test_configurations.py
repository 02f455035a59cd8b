"""Configurations as text: read back exactly, and nothing else is read."""

import pytest

from tvm_hopper import schedule as hs
from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule.configurations import as_text, from_text, kind_of, say

CONFIGS = {
    "matmul": hs.MatmulConfig(),
    "matmul consumers=2 persistent=-1 registers=40x232 stages=4 tile=128x256x64": hs.MatmulConfig(
        (128, 256, 64), 4, 2, registers=(40, 232), persistent=-1
    ),
    "matmul accumulate=float32 form=transposed split_k=2": hs.MatmulConfig(
        accumulate="float32", split_k=2, form="transposed"
    ),
    "matmul early_launch=weights form=warps:4,columns:16,depth:64": hs.MatmulConfig(
        form=hs.DirectShape(4, 16, 64), early_launch="weights"
    ),
    "matmul early_launch=no form=threads:32,groups:4,columns:1,vectors:4": hs.MatmulConfig(
        form=hs.DotShape(32, 4, 1, 4), early_launch=False
    ),
    "matmul form=dots": hs.MatmulConfig(form="dots"),
    "matmul raster=group:8,curve:hilbert split_k=parts:4,mode:serial": hs.MatmulConfig(
        raster=hs.Raster(8, "hilbert"), split_k=hs.SplitK(4, "serial")
    ),
    "matmul raster=hilbert split_k=stream": hs.MatmulConfig(raster="hilbert", split_k="stream"),
    "matmul store=parts:4,operand_slots:0": hs.MatmulConfig(store=hs.TmaStore(4, 0)),
    "row_reduction preload=no threads=128": hs.RowReductionConfig(threads=128, preload=False),
    "pointwise chunks=2 vector=8": hs.PointwiseConfig(chunks=2, vector=8),
    "column_reduction blocks=8 flight=4": hs.ColumnReductionConfig(blocks=8, flight=4),
}


@pytest.mark.parametrize("text", CONFIGS)
def test_a_text_is_read_back_exactly(text):
    config = CONFIGS[text]
    assert as_text(config) == text
    assert from_text(text) == config
    assert kind_of(config) == text.split(" ")[0]


def test_words_for_tables():
    assert say(hs.MatmulConfig(accumulate="float32")) == "built-in choice"
    config = hs.MatmulConfig((128, 256, 64), 4, 2, form="transposed", store=None)
    assert say(config) == "128x256x64, 4 stages, 2 consumers, transposed"
    assert say(hs.MatmulConfig((64, 256, 64), 4, 1)) == "64x256x64, 4 stages, 1 consumer"
    both = hs.MatmulConfig(split_k=hs.SplitK(4, "serial"))
    assert say(both) == "SplitK(parts=4, mode='serial')"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (3, "need a kind of kernel and its fields"),
        ("matmul " + "a" * 5000, "need a kind of kernel and its fields"),
        ("", "need one of the kinds matmul"),
        ("conv tile=1x2x3", "need one of the kinds matmul"),
        ("matmul tile", "need a kind of kernel and its fields"),
        ("matmul  stages=4", "need a kind of kernel and its fields"),
        ("matmul stages=4 stages=5", "need a kind of kernel and its fields"),
        ("matmul stages=__import__", "need a legal configuration"),
        ("matmul split_k=parts:4,rows:2", "split_k has no parts parts, rows.*need a legal conf"),
        ("matmul tile=parts:4", "tile has no parts parts.*need a legal configuration"),
        ("matmul split_k=parts:0", "need a legal configuration"),
        ("matmul threads=4", "found 'threads' in .*need fields of a MatmulConfig"),
        ("matmul tile=128x256", "need a legal configuration"),
        ("matmul stages=yes", "need a legal configuration"),
        ("matmul stages=99999999999999999999999", "need a legal configuration"),
        ("pointwise threads=33", "need a legal configuration"),
    ],
)
def test_anything_else_is_refused(text, match):
    with pytest.raises(TuningError, match=match) as error:
        from_text(text, "here")
    assert str(error.value).startswith("here: found")
