"""`tvm_hopper.facts` against the hardware: TMA writes, WGMMA reads, setmaxnreg, limits of the chip.

Nothing of TVM takes part: a few lines of CUDA run the one instruction that a fact is about.
"""

import ctypes
import itertools

import numpy as np
import pytest

from tvm_hopper.facts import registers, tensor_map, wgmma
from tvm_hopper.facts.arch import ARCHS
from tvm_hopper.facts.programming_model import MAX_GRID_YZ, MAX_THREADS, THREADS_PER_WARP

pytestmark = pytest.mark.gpu

driver = pytest.importorskip("cuda.bindings.driver")
nvrtc = pytest.importorskip("cuda.bindings.nvrtc")

SMEM = 96 * 1024
TILE_M, TILE_K = 64, 64


def call(result):
    """Return what a driver or NVRTC call gave, after its error code was looked at."""
    code, *values = result
    assert int(code) == 0, code
    return values[0] if len(values) == 1 else values


@pytest.fixture(scope="module")
def context():
    try:
        found = int(driver.cuInit(0)[0]) == 0 and call(driver.cuDeviceGetCount())
    except RuntimeError:  # there is no driver library at all
        found = 0
    if not found:
        pytest.skip("no GPU")
    device = call(driver.cuDeviceGet(0))
    call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(device))))
    yield
    call(driver.cuDevicePrimaryCtxRelease(device))


def mma_kernel(n, a_mn, b_mn):
    count = wgmma.accumulator_registers(n)
    regs = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    name = wgmma.instruction_name(n, "float16")
    return f"""
extern "C" __global__ void mma_{n}_{a_mn}_{b_mn}(const uint4* image, int chunks,
        const unsigned long long* desc, int steps, float* out) {{
    extern __shared__ __align__(1024) char smem[];
    for (int i = threadIdx.x; i < chunks; i += 128) ((uint4*)smem)[i] = image[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    unsigned long long base = (unsigned)__cvta_generic_to_shared(smem) >> 4;
    float d[{count}];
    for (int i = 0; i < {count}; ++i) d[i] = 0.0f;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int s = 0; s < steps; ++s)
        asm volatile("{name} {{{regs}}}, %{count}, %{count + 1}, 1, 1, 1, {a_mn}, {b_mn};"
            : {outs} : "l"(desc[2 * s] + base), "l"(desc[2 * s + 1] + base));
    asm volatile("wgmma.commit_group.sync.aligned;");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < {count}; ++i) out[threadIdx.x * {count} + i] = d[i];
}}"""


TMA_KERNEL = """
struct __align__(64) Map { unsigned long long word[16]; };
extern "C" __global__ void tma(const __grid_constant__ Map map, int bytes, uint4* out) {
    extern __shared__ __align__(1024) char smem[];
    __shared__ __align__(8) unsigned long long bar;
    unsigned b = (unsigned)__cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b) : "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(b), "r"(bytes));
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
            " [%0], [%1, {%2, %3}], [%4];" :: "r"((unsigned)__cvta_generic_to_shared(smem)),
            "l"(&map), "r"(0), "r"(0), "r"(b) : "memory");
    }
    asm volatile("{ .reg .pred p; w: mbarrier.try_wait.parity.shared.b64 p, [%0], 0;"
        " @!p bra w; }" :: "r"(b) : "memory");
    for (int i = threadIdx.x; i < bytes / 16; i += 128) out[i] = ((uint4*)smem)[i];
}"""


def setmaxnreg_kernel(consumers):
    producer, consumer = registers.default_split(consumers)
    threads = registers.threads(consumers)
    return f"""
extern "C" __global__ void __launch_bounds__({threads}, 1) split_{consumers}(int* out) {{
    if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 {producer};");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 {consumer};");
    out[threadIdx.x] = threadIdx.x;
}}"""


@pytest.fixture(scope="module")
def kernels(context):
    parts = [mma_kernel(n, a, b) for n in (64, 256) for a in (0, 1) for b in (0, 1)]
    parts += [TMA_KERNEL, *(setmaxnreg_kernel(c) for c in registers.DEFAULT_SPLIT)]
    program = call(nvrtc.nvrtcCreateProgram("\n".join(parts).encode(), b"facts.cu", 0, [], []))
    options = [b"--gpu-architecture=sm_90a"]
    if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]):
        log = b" " * call(nvrtc.nvrtcGetProgramLogSize(program))
        call(nvrtc.nvrtcGetProgramLog(program, log))
        pytest.fail(log.decode())
    cubin = b" " * call(nvrtc.nvrtcGetCUBINSize(program))
    call(nvrtc.nvrtcGetCUBIN(program, cubin))
    module = call(driver.cuModuleLoadData(cubin))
    return lambda name: call(driver.cuModuleGetFunction(module, name.encode()))


def upload(array):
    pointer = call(driver.cuMemAlloc(array.nbytes))
    call(driver.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
    return pointer


def launch(function, threads, smem, values, types):
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call(driver.cuFuncSetAttribute(function, limit, smem))
    call(driver.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, smem, 0, (values, types), 0))
    call(driver.cuCtxSynchronize())


def place(image, start, layout, matrix):
    """Store `matrix` (rows, k) into the bytes of shared memory, where the layout says."""
    row, k = np.meshgrid(np.arange(layout.rows), np.arange(layout.k), indexing="ij")
    image.view(np.float16)[(start + layout.element_offset(row, k)) // 2] = matrix


SWIZZLES = (0, 32, 64, 128)


@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize(("a_major", "b_major"), list(itertools.product(wgmma.MAJORS, repeat=2)))
@pytest.mark.parametrize(("a_swizzle", "b_swizzle"), list(itertools.product(SWIZZLES, repeat=2)))
def test_wgmma_reads_every_layout(kernels, n, a_major, b_major, a_swizzle, b_swizzle):
    rng = np.random.default_rng(n + a_swizzle + 3 * b_swizzle)
    a, b = (rng.integers(-2, 3, (r, TILE_K)).astype(np.float16) for r in (TILE_M, n))
    a_layout = wgmma.operand_layout(a_major, TILE_M, TILE_K, "float16", a_swizzle)
    b_layout = wgmma.operand_layout(b_major, n, TILE_K, "float16", b_swizzle)
    b_start = a_layout.tile_bytes
    image = np.zeros(b_start + b_layout.tile_bytes, np.uint8)
    place(image, 0, a_layout, a)
    place(image, b_start, b_layout, b)
    steps = TILE_K // wgmma.instruction_k("float16")
    words = [
        value.encode()
        for s in range(steps)
        for value in (a_layout.descriptor(0, step=s), b_layout.descriptor(b_start, step=s))
    ]
    count = wgmma.accumulator_registers(n)
    out = np.full((128, count), np.nan, np.float32)
    pointers = [upload(x) for x in (image, np.array(words, np.uint64), out)]
    name = f"mma_{n}_{int(a_major == 'mn')}_{int(b_major == 'mn')}"
    launch(
        kernels(name),
        128,
        SMEM,
        (pointers[0], image.nbytes // 16, pointers[1], steps, pointers[2]),
        (None, ctypes.c_int, None, ctypes.c_int, None),
    )
    call(driver.cuMemcpyDtoH(out.ctypes.data, pointers[2], out.nbytes))
    for pointer in pointers:
        call(driver.cuMemFree(pointer))
    i, thread = np.meshgrid(np.arange(count), np.arange(128))
    got = np.full((TILE_M, n), np.nan, np.float32)
    got[wgmma.accumulator_row(i, thread), wgmma.accumulator_col(i, thread)] = out
    np.testing.assert_array_equal(got, a.astype(np.float64) @ b.T.astype(np.float64))


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_tma_writes_a_panel_as_the_layout_says(kernels, swizzle):
    layout = wgmma.operand_layout("k", 64, max(swizzle // 2, 16), "float16", swizzle)
    span, rows = layout.span_elements, layout.rows
    # The tensor ends eight rows early: the tail of the box is filled with zeros and still counts.
    tensor = np.arange(1, 1 + (rows - 8) * 128, dtype=np.uint16).view(np.float16).reshape(-1, 128)
    pointer, out = upload(tensor), np.full(rows * span, 0xFFFF, np.uint16)
    made = tensor_map.TensorMap("float16", (128, rows - 8), (256,), (span, rows), (), swizzle)
    assert made.check() == ()
    u32, u64 = driver.cuuint32_t, driver.cuuint64_t
    encoded = call(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType(tensor_map.DTYPE_CODE["float16"]),
            made.rank,
            pointer,
            [u64(x) for x in made.dims],
            [u64(x) for x in made.strides_bytes],
            [u32(x) for x in made.box],
            [u32(x) for x in made.element_strides],
            driver.CUtensorMapInterleave(tensor_map.INTERLEAVE_NONE),
            driver.CUtensorMapSwizzle(tensor_map.SWIZZLE_CODE[swizzle]),
            driver.CUtensorMapL2promotion(0),
            driver.CUtensorMapFloatOOBfill(tensor_map.OOB_CODE["zero"]),
        )
    )
    result = upload(out)
    args = (encoded, made.box_bytes, result)
    launch(kernels("tma"), 128, SMEM, args, (None, ctypes.c_int, None))
    call(driver.cuMemcpyDtoH(out.ctypes.data, result, out.nbytes))
    want = np.zeros((rows, span), np.uint16)
    want[: rows - 8] = tensor.view(np.uint16)[:, :span]
    row, k = np.meshgrid(np.arange(rows), np.arange(span), indexing="ij")
    np.testing.assert_array_equal(out[layout.element_offset(row, k) // 2], want)


@pytest.mark.parametrize("consumers", sorted(registers.DEFAULT_SPLIT))
def test_the_default_register_split_does_not_hang(kernels, consumers):
    threads = registers.threads(consumers)
    out = np.zeros(threads, np.int32)
    pointer = upload(out)
    launch(kernels(f"split_{consumers}"), threads, 0, (pointer,), (None,))
    call(driver.cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
    assert (out == np.arange(threads)).all()


LIMITS = {  # what the driver is asked for, and where it stands
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": "smem_per_block",
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": "smem_per_sm",
    "RESERVED_SHARED_MEMORY_PER_BLOCK": "smem_reserved_per_block",
    "MAX_REGISTERS_PER_BLOCK": "registers_per_block",
    "MAX_REGISTERS_PER_MULTIPROCESSOR": "registers_per_sm",
    "MAX_THREADS_PER_MULTIPROCESSOR": "max_threads_per_sm",
    "MAX_BLOCKS_PER_MULTIPROCESSOR": "max_blocks_per_sm",
    "CLUSTER_LAUNCH": "has_clusters",
}


def attribute(name):
    device = call(driver.cuCtxGetDevice())
    key = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return call(driver.cuDeviceGetAttribute(key, device))


def test_the_driver_says_the_same_of_the_chip(context):
    found = tuple(attribute(f"COMPUTE_CAPABILITY_{x}") for x in ("MAJOR", "MINOR"))
    archs = [arch for arch in ARCHS.values() if arch.compute_capability == found]
    if not archs:
        pytest.skip(f"no row for compute capability {found}")
    for name, field in LIMITS.items():
        assert attribute(name) == getattr(archs[0], field), name
    assert attribute("MAX_THREADS_PER_BLOCK") == MAX_THREADS
    assert attribute("WARP_SIZE") == THREADS_PER_WARP
    assert attribute("MAX_GRID_DIM_Y") == attribute("MAX_GRID_DIM_Z") == MAX_GRID_YZ
