"""The compilers: judged logs, pip's compiler alone, what is said where something is missing."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from tvm_hopper import CompileError
from tvm_hopper.cuda_build import assembler_log, compilers, disassembler, nvrtc, toolkits

GEMM = (Path(__file__).with_name("gemm.cu")).read_text()

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
COMPILERS = ["nvrtc", pytest.param("nvcc", marks=needs_nvcc)]


def without(pattern: str) -> str:
    """Return the kernel without the calls of one instruction."""
    text, count = re.subn(rf"(?m)^\s*tvm_builtin_ptx_{pattern}\w*\([^\n]*\);\n", "", GEMM)
    assert count
    return text


@pytest.mark.parametrize("compiler", COMPILERS)
def test_facts_of_a_good_kernel(compiler: str) -> None:
    result = compilers.compile_source(GEMM, compiler)
    facts = result.kernels["main_kernel"]
    assert result.cubin[:4] == b"\x7fELF"
    assert result.compiler == compiler
    assert facts.registers == 168  # 384 threads: 65536 / 384, rounded down to 8
    assert (facts.spill_store_bytes, facts.spill_load_bytes) == (0, 0)
    assert not assembler_log.remarks(result.log)
    assert "--use_fast_math" not in result.math_flags


SPILLS = """
extern "C" __global__ void __launch_bounds__(1024) main_kernel(float* p) {  // 64 registers each
  float v[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) v[i] = p[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 128; ++i) p[(127 - i) * 1024 + threadIdx.x] = v[i] * v[(i * 7) % 128];
}
"""


def test_too_few_registers_name_the_instruction() -> None:
    text = GEMM.replace("__launch_bounds__(384)", "__launch_bounds__(1024)")
    with pytest.raises(CompileError, match=r"found ptxas fatal .*Insufficient registers \(64\)"):
        compilers.compile_source(text)


# The meta-test of the gate: what a pass could forget, and who sees it.
BROKEN = {
    "fence": (without("wgmma_fence"), "C7519 .*need a wgmma.fence"),
    "wait": (without("wgmma_wait_group"), "C7517 .*need a wgmma.wait_group"),
    "launch bounds": (
        re.sub(r"__launch_bounds__\(\d+\)", "", GEMM),
        "C7508 .*setmaxnreg' ignored.*need launch bounds",
    ),
    "registers": (
        GEMM.replace("setmaxnreg.inc.sync.aligned.u32 232", "setmaxnreg.inc.sync.aligned.u32 56"),
        "C7507 .*need register counts",
    ),
}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("what", BROKEN)
def test_the_gate_sees_what_was_removed(what: str, compiler: str) -> None:
    if (what, compiler) == ("fence", "nvrtc") and nvrtc.version() > (13, 0):
        pytest.skip("later assemblers add a missing fence without a word: for the static check")
    text, message = BROKEN[what]
    with pytest.raises(CompileError, match=f"main_kernel: found .*{message}"):
        compilers.compile_source(text, compiler)
    assert compilers.compile_source(text, compiler, check_log=False).cubin


@pytest.mark.parametrize("compiler", COMPILERS)
def test_spills_are_refused_where_fallbacks_are(compiler: str) -> None:
    match = r"found \d+ bytes of spill stores and \d+ of spill loads in main_kernel; need none"
    with pytest.raises(CompileError, match=match):
        compilers.compile_source(SPILLS, compiler, strict=True)
    assert compilers.compile_source(SPILLS, compiler).cubin


def test_a_missing_commit_is_not_seen_here() -> None:
    """PTX has it mended without a word: the static check of the IR must see it (H22)."""
    assert compilers.compile_source(without("wgmma_commit_group")).cubin


def test_remarks_of_unknown_kind_are_refused() -> None:
    log = "ptxas info : (C7599) something new\nptxas warning : setmaxnreg ignored\n"
    with pytest.raises(CompileError, match=r"CUDA module: found C7508 .* \| found C7599 something"):
        assembler_log.check(log, {})


def test_spills_are_reported_with_their_bytes() -> None:
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
        "ptxas info    : Function properties for k\n"
        "    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 3 barriers, 1024 bytes smem\n"
    )
    facts = assembler_log.read_facts(log)
    assert facts == {"k": assembler_log.KernelFacts("k", 168, 3, 1024, 16, 12, 8)}
    assembler_log.check(log, facts)  # outside of the multiplications: `explain` reports them
    with pytest.raises(CompileError, match=r"found 12 bytes of spill stores and 8 .* need none"):
        assembler_log.check(log, facts, strict=True)
    serial = log + "ptxas info : (C7512) Potential Performance Loss: serialized\n"
    with pytest.raises(
        CompileError, match=r"found C7512 Potential .* need registers for the accum"
    ):
        assembler_log.check(serial, facts)


def test_an_array_in_local_memory_is_refused_with_its_bytes() -> None:
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
        "    {} bytes stack frame, {} bytes spill stores, {} bytes spill loads\n"
    )
    for numbers, array in (((32, 0, 0), 32), ((524400, 8, 8), 524376)):
        text = log.format(*numbers)
        match = f"a stack frame of {numbers[0]} bytes in k, {array} of them without spills; need ar"
        with pytest.raises(CompileError, match=match):
            assembler_log.check(text, assembler_log.read_facts(text))
    spilled = log.format(16, 12, 12)
    assembler_log.check(spilled, assembler_log.read_facts(spilled))


@pytest.mark.parametrize(
    ("assembly", "bytes_of_arrays"),
    [
        (".visible .entry k(.param .b64 x)\n{ .reg .b32 r; }", 0),
        (".entry k()\n{ .local .align 4 .b8 __local_depot0[64]; }", 50),
        (".entry k()\n{ .reg .b32 r; }\n.entry other()\n{ .local .align 4 .b8 d[64]; }", 0),
        (".func (.reg .b32 r) f(.reg .b32 x) { .local .align 4 .b8 d[64]; }\n.entry k() { }", 50),
        ("", 50),
    ],
)
def test_holes_between_spills_are_no_array_where_ptx_declares_none(
    assembly: str, bytes_of_arrays: int
) -> None:
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
        "    1760 bytes stack frame, 1694 bytes spill stores, 1536 bytes spill loads\n"
    )
    facts = assembler_log.read_facts(log, assembly.encode())
    assert facts["k"].array_bytes == bytes_of_arrays


def test_fewer_thread_blocks_share_an_sm_where_registers_would_be_spilled() -> None:
    frames = {"k": {5: 16, 4: 8}, "free": {None: 8, 4: 8}, "one": {1: 8}, "array": {5: 64, 1: 64}}
    texts = []

    def log(text: str) -> compilers.Output:
        texts.append(text)
        lines = []
        for _, count, name in compilers._BOUNDS.findall(text):
            size = frames.get(name, {}).get(int(count) if count else None, 0)
            spills = max(size - 8, 0) if name != "array" else 0  # 8 are in the frame alone
            lines.append(
                f"Compiling entry function '{name}' for 'sm_90a'\n{size} bytes stack frame, "
                f"{spills} bytes spill stores, {spills} bytes spill loads\nUsed 48 registers"
            )
        return compilers.Output(text.encode(), b"", "\n".join(lines))

    bounds = {"k": "128, 5", "other": "256, 5", "one": "128, 1", "free": "256", "array": "128, 5"}
    text = "".join(
        f"__global__ void __launch_bounds__({bound}) {name}(float* x);\n"
        for name, bound in bounds.items()
    )
    out, facts, fewer = compilers._compile_without_spills(text, log)
    assert fewer == {"k": (5, 3)}  # of "free" no number was asked for
    wanted = text.replace("(128, 5) k", "(128, 3) k").replace("(256) free", "(256, 3) free")
    assert out.cubin.decode() == wanted
    assert {name: x.stack_bytes for name, x in facts.items() if x.stack_bytes} == {
        "one": 8, "array": 64
    }  # fmt: skip
    assert len(texts) == 4


def test_a_local_array_fails_the_build() -> None:
    text = """extern "C" __global__ void k(int *x, float *y) {
    float part[64];
    for (int i = 0; i < 64; ++i) part[x[i]] = y[i];
    for (int i = 0; i < 64; ++i) y[i] = part[x[64 + i]];
}"""
    with pytest.raises(CompileError, match=r"of k: found a stack frame of 256 bytes in k, 256 of"):
        compilers.compile_source(text)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_text_that_does_not_compile_names_its_error(compiler: str) -> None:
    with pytest.raises(CompileError, match=r'found .*identifier "blokIdx" is undefined.*need CUDA'):
        compilers.compile_source(GEMM.replace("blockIdx", "blokIdx"), compiler)


def test_unknown_compiler_is_refused() -> None:
    with pytest.raises(CompileError, match="compiler: found 'clang'; need 'nvrtc' or 'nvcc'"):
        compilers.compile_source(GEMM, "clang")


def test_missing_nvcc_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CompileError, match="nvcc: found none on PATH; need CUDA"):
        compilers.with_nvcc(GEMM, "sm_90a", False)


def test_missing_headers_say_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(compilers, "header_folders", tuple)
    with pytest.raises(
        CompileError, match=r"found not both of .*cuda_fp16\.h.*pip install .*nvrtc>=13"
    ):
        compilers.with_nvrtc(GEMM, "sm_90a", False)


def test_headers_may_come_from_two_places(monkeypatch, tmp_path: Path) -> None:
    """PyTorch's packages hold cuda_fp16.h without libcu++; a toolkit may have the rest."""
    torch, toolkit = tmp_path / "torch", tmp_path / "toolkit"
    (torch / "cu13" / "include").mkdir(parents=True)
    (torch / "cu13" / "include" / "cuda_fp16.h").touch()
    (toolkit / "include" / "cccl" / "cuda" / "std").mkdir(parents=True)
    (toolkit / "include" / "cccl" / "cuda" / "std" / "cstdint").touch()
    found = type("Spec", (), {"submodule_search_locations": [str(torch)]})
    monkeypatch.setattr("importlib.util.find_spec", lambda _: found)
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    search = compilers.header_folders.__wrapped__
    expected = (str(torch / "cu13" / "include"), str(toolkit / "include" / "cccl"))
    assert search() == expected


def test_missing_nvrtc_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc, "library", nvrtc.library.__wrapped__)
    monkeypatch.setattr(nvrtc, "nvrtc_files", lambda major: [f"libnothing.so.{major}"])
    with pytest.raises(CompileError, match=r"found no libnvrtc of CUDA 13 or 12; .*pip install"):
        compilers.with_nvrtc(GEMM, "sm_90a", False)
    assert nvrtc.version() == (13, 0)


def test_pip_packages_of_both_cudas_may_lie_side_by_side(monkeypatch, tmp_path: Path) -> None:
    """PyTorch 2.10 brings those of CUDA 12; ours of CUDA 13 come first, and headers fit them."""
    for part in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"):
        (tmp_path / part).parent.mkdir(parents=True)
        (tmp_path / part).touch()
    for root, number in (("cu13", 13000), ("cuda_runtime", 12080), ("toolkit", 12090)):
        (tmp_path / root / "include").mkdir(parents=True)
        header = tmp_path / root / "include" / "cuda_runtime_api.h"
        header.write_text(f"#define CUDART_VERSION  {number}\n")
    monkeypatch.setattr(toolkits, "pip_folders", lambda *parts: [tmp_path.joinpath(*parts)])
    monkeypatch.setattr(toolkits, "toolkit_folders", lambda: [tmp_path / "toolkit"])
    assert toolkits.nvrtc_files(13) == [f"{tmp_path}/cu13/lib/libnvrtc.so.13", "libnvrtc.so.13"]
    assert toolkits.nvrtc_files(12)[0] == f"{tmp_path}/cuda_nvrtc/lib/libnvrtc.so.12"
    assert toolkits.include_folders(13)[0] == tmp_path / "cu13" / "include"
    assert tmp_path / "toolkit" / "include" not in toolkits.include_folders(13)
    found = toolkits.include_folders(12)
    assert found[0] == tmp_path / "cuda_runtime" / "include"
    assert tmp_path / "toolkit" / "include" in found


def test_an_nvrtc_option_it_does_not_know_is_refused() -> None:
    with pytest.raises(CompileError, match=r"NVRTC: found .*gpu-architecture"):
        compilers.with_nvrtc(GEMM, "sm_13", False)


def section(cubin: bytes) -> str:
    """Return the instructions of a cubin, without the file's names and offsets."""
    return disassembler.disassemble(cubin).split(".text.main_kernel:")[1]


def test_the_short_header_changes_no_instruction(monkeypatch) -> None:
    short = compilers.with_nvrtc(GEMM, "sm_90a", False)
    monkeypatch.setattr(compilers, "_WITHOUT_TRAITS", set())
    full = compilers.with_nvrtc(GEMM, "sm_90a", False)
    assert section(short.cubin) == section(full.cubin)


@pytest.mark.parametrize(("kernels", "cores", "options"), [(1, 8, []), (2, 1, []), (2, 8, [2])])
def test_kernels_are_compiled_side_by_side(monkeypatch, kernels, cores, options) -> None:
    monkeypatch.setattr(compilers, "_cores", lambda: cores)
    text = GEMM + "\n".join(
        f'extern "C" __global__ void k{i}(int* p) {{}}' for i in range(1, kernels)
    )
    assert compilers._side_by_side(text) == [f"--split-compile={x}" for x in options]


def test_remarks_about_kernels_beside_others_are_errors(monkeypatch, capfd) -> None:
    """Several assemblers print them to the process's streams."""
    monkeypatch.setattr(compilers, "_cores", lambda: 2)
    broken, message = BROKEN["wait"]
    text = broken + '\nextern "C" __global__ void other(int* p) {}\n'
    with pytest.raises(CompileError, match=message):
        compilers.compile_source(text)
    assert capfd.readouterr().out == ""


def test_a_kernel_beside_others_has_the_same_instructions(monkeypatch) -> None:
    text = GEMM + GEMM[GEMM.rindex('extern "C" __global__') :].replace("main_kernel", "other")
    found = []
    for cores in (1, 2):
        monkeypatch.setattr(compilers, "_cores", lambda cores=cores: cores)
        found.append(section(compilers.with_nvrtc(text, "sm_90a", False).cubin))
    assert found[0] == found[1]


def test_other_includes_get_the_real_headers() -> None:
    text = '#include <cuda/std/array>\nextern "C" __global__ void k(float* p) { p[0] = 1; }'
    assert compilers.with_nvrtc(text, "sm_90a", False)[0][:4] == b"\x7fELF"


def test_the_short_header_holds_its_eight_traits() -> None:
    text = """
#include <cuda/std/type_traits>
namespace t = cuda::std;
static_assert(t::is_same<int, int>::value && !t::is_same_v<int, float>, "");
static_assert(t::is_integral<unsigned char>::value && !t::is_integral<float>::value, "");
static_assert(t::is_signed<int>::value && !t::is_signed<unsigned>::value, "");
static_assert(t::is_unsigned<unsigned>::value && !t::is_unsigned<float>::value, "");
static_assert(t::is_floating_point<double>::value && !t::is_floating_point<int>::value, "");
static_assert(t::is_same_v<t::conditional<false, int, float>::type, float>, "");
static_assert(t::is_same_v<t::enable_if<true, int>::type, int>, "");
extern "C" __global__ void k(float* p) { p[0] = INFINITY; }
"""
    assert compilers.with_nvrtc(text, "sm_90a", False)[0]


def test_inline_assembly_needs_no_mma_h() -> None:
    """TVM includes it beside every product on tensor cores; pip's packages have half of it."""
    text = '#include <mma.h>\nextern "C" __global__ void k(float* p) { p[0] = 1; }'
    assert compilers.with_nvrtc(text, "sm_90a", False)[0][:4] == b"\x7fELF"


def test_fast_math_is_stated() -> None:
    text = 'extern "C" __global__ void k(float* p) { p[0] = p[1] / p[2]; }'
    exact, fast = (compilers.compile_source(text, fast_math=f) for f in (False, True))
    assert fast.math_flags == ("--use_fast_math",)
    assert exact.math_flags == ("--fmad=true", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
    assert exact.cubin != fast.cubin


def test_compiling_takes_well_under_a_second() -> None:
    begin = time.perf_counter()
    compilers.with_nvrtc(GEMM, "sm_90a", False)
    assert time.perf_counter() - begin < 1.5


def test_the_toolkit_of_the_machine_is_not_needed(fresh, tmp_path: Path) -> None:
    """PATH and the CUDA variables cleared: pip's packages are enough."""
    text = tmp_path / "gemm.cu"
    text.write_text(GEMM)
    code = (
        "import sys, pathlib, shutil; from tvm_hopper.cuda_build import compilers;"
        "assert shutil.which('nvcc') is None;"
        f"result = compilers.compile_source(pathlib.Path({str(text)!r}).read_text());"
        "maps = pathlib.Path('/proc/self/maps').read_text();"
        "libs = {l.split()[-1] for l in maps.splitlines() if 'nvrtc' in l};"
        "assert libs and all('site-packages' in l for l in libs), libs;"
        "assert all('site-packages' in f for f in compilers.header_folders());"
        "print(len(result.cubin))"
    )
    done = fresh(
        "-W", "ignore", "-c", code, PATH="", CUDA_HOME="", CUDA_PATH="", LD_LIBRARY_PATH=""
    )
    assert int(done.stdout) > 1000


def test_nvrtc_call_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (nvrtc.nvrtcResult(11), 0)
    monkeypatch.setattr(nvrtc, "nvrtcGetCUBINSize", lambda program: broken)
    with pytest.raises(CompileError, match=r"nvrtcGetCUBINSize returned NVRTC_ERROR_INTERNAL"):
        compilers.with_nvrtc(GEMM, "sm_90a", fast_math=False)
