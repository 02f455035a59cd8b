"""Build our kernels: final TIR to CUDA text to machine code, before TVM's own build.

`build.py` checks the kernels, lets TVM print them, and has the text compiled; `compilers.py` runs
NVRTC and nvcc, `assembler_log.py` checks their logs, `records.py` keeps builds, `runtime.py` finds
pip's CUDA runtime, `disassembler.py` reads machine code; `foreign.py` compiles TVM's own kernels
where TVM finds no CUDA headers. `build.py` and `records.py` alone import TVM at their top.
"""
