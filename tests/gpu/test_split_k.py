"""Products whose sum thread blocks share, on a GPU: values, and the same bits in each run."""

import threading

import pytest

from benchmarks.matmul_case import Case, build, check
from tvm_hopper import schedule as hs

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")

RUNS = 100
CASES = [
    (64, 64, 64, (64, 64, 64), 2),  # one step, and a part with none
    (88, 184, 29440, (64, 48, 128), 8),
    (100, 200, 1000, (64, 96, 64), 3),  # ragged, parts that end early
    (256, 512, 4096, (128, 128, 64), 4),
    (192, 256, 5000, (192, 64, 64), 5),
    (128, 512, 3080, (128, 256, 64), 7),
    (64, 8, 8192, (64, 8, 64), 6),
]


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def case(m, n, k, tile, parts, **form):
    dtype = form.pop("dtype", "bfloat16")
    config = {"tile": tile, "split_k": parts, "form": form.pop("form", None)}
    return Case(m, n, k, "NT", dtype, form.pop("out_dtype", dtype), config, form)


@pytest.mark.parametrize(("m", "n", "k", "tile", "parts"), CASES)
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
def test_values(m, n, k, tile, parts, out_dtype):
    one = case(m, n, k, tile, parts, out_dtype=out_dtype)
    check(one, build(one)["main"])


@pytest.mark.parametrize(
    ("m", "n", "k", "tile", "parts"),
    [
        (1, 1024, 4096, (64, 8, 128), 6),
        (17, 200, 5000, (128, 24, 64), 4),  # ragged, and one that stores nothing
        (100, 520, 2056, (64, 56, 128), 3),
        (64, 3072, 13824, (256, 64, 64), 5),
    ],
)
@pytest.mark.parametrize("epilogue", [(), ("bias_col", "relu", "residual")])
def test_transposed(m, n, k, tile, parts, epilogue):
    one = case(m, n, k, tile, parts, form="transposed", epilogue=epilogue)
    check(one, build(one)["main"])


@pytest.mark.parametrize("parts", [9, 12, 16])
def test_more_parts_than_every_chip_has_room_for(parts):
    one = case(88, 392, 20000, (64, 56, 128), parts)
    check(one, build(one)["main"])


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1536, 3072), (16, 1024, 24576), (64, 88, 53568), (224, 744, 12864), (1000, 1000, 20000)],
)
def test_what_is_chosen(m, n, k):
    one = Case(m, n, k, "NT", "bfloat16", "bfloat16")
    assert hs.choose_config(m, n, k, "bfloat16").split_k
    check(one, build(one)["main"])


ROWS = (1, 2, 7, 8, 17, 64, 100, 128, 129, 300, 1000)


@pytest.mark.parametrize(("n", "k"), [(512, 16384), (2048, 2048), (136, 5000)])
def test_bits_that_do_not_depend_on_the_number_of_rows(n, k):
    """Where that is promised; where it is not, few rows of a deep sum are added in parts."""
    torch.manual_seed(0)
    a = torch.randn(max(ROWS), k, device="cuda").bfloat16()
    b = torch.randn(n, k, device="cuda").bfloat16()
    outputs = []
    for m in ROWS:
        one = Case(m, n, k, "NT", "bfloat16", "float32", {"batch_invariant": True})
        c = torch.full((m, n), float("nan"), device="cuda")
        build(one)["main"](a[:m].contiguous(), b, c)
        outputs.append(c)
    torch.cuda.synchronize()
    for c in outputs:
        assert torch.equal(c, outputs[-1][: len(c)]), f"{len(c)} rows"


def test_an_epilogue_sees_the_whole_sum():
    one = case(100, 192, 2000, (64, 96, 64), 4, epilogue=("bias_col", "relu"))
    check(one, build(one)["main"])


def inputs(m, n, k):
    a = torch.randn(m, k, device="cuda").bfloat16()
    b = torch.randn(n, k, device="cuda").bfloat16()
    return a, b, torch.full((m, n), float("nan"), device="cuda").bfloat16()


@pytest.fixture(scope="module")
def product():
    return build(case(256, 512, 8192, (128, 128, 64), 8))["main"]


def test_the_same_bits_in_each_run_beside_other_work(product):
    a, b, c = inputs(256, 512, 8192)
    product(a, b, c)
    torch.cuda.synchronize()
    want = c.clone()
    other = torch.cuda.Stream()
    x = torch.randn(4096, 4096, device="cuda").bfloat16()
    for _ in range(RUNS):
        with torch.cuda.stream(other):
            x @ x
        c.fill_(float("nan"))
        product(a, b, c)
        assert torch.equal(c, want)


def test_on_two_streams_and_in_two_threads(product):
    sets = [inputs(256, 512, 8192) for _ in range(2)]
    want = [(a.double() @ b.double().t()) for a, b, _ in sets]
    wrong = []

    def work(number):
        a, b, c = sets[number]
        stream = torch.cuda.Stream()
        with tvm_ffi.use_torch_stream(torch.cuda.stream(stream)):
            for _ in range(RUNS):
                c.fill_(float("nan"))
                product(a, b, c)
                stream.synchronize()
                if not torch.allclose(c.double(), want[number], rtol=1e-2, atol=1.0):
                    wrong.append(number)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_in_a_replayed_graph(product):
    a, b, c = inputs(256, 512, 8192)
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        product(*map(tvm_ffi.from_dlpack, (a, b, c)))
    for _ in range(5):
        a.normal_()
        c.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(c.double(), a.double() @ b.double().t(), rtol=1e-2, atol=1.0)
