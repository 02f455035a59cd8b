"""`benchmarks.row_matrix`: which kernels are timed, and where."""

from benchmarks.row_matrix import build_one, worth_timing


def test_kernels_near_the_best_are_timed_where_they_are_not_far_from_it():
    found = worth_timing(2048, 1024, (16, 300, 4096))
    assert {kind for kind, *_ in found} == {"many", "alone"}
    assert all(set(at) <= {16, 300, 4096} for *_, at in found)
    served = [m for kind, _, at in found for m in at if kind == "many"]
    assert set(served) == {16, 300, 4096}
    assert not any(4096 in at for kind, _, at in found if kind == "alone")  # more tiles than SMs


def test_a_kernel_is_built(tmp_path):
    path = build_one("alone", 128, 64, 64, str(tmp_path / "kernel.so"))
    assert (tmp_path / "kernel.so").stat().st_size > 0
    assert path.endswith("kernel.so")
