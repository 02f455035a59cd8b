"""The types in the names of PTX instructions, as TVM dtypes.

Written from PTX ISA 9.1, 5.2.1 and the instructions' own pages, next to `facts.dtypes`: that one
names the instructions that the lowering emits, this one reads them back.
"""

DTYPE_OF = {
    "b8": "uint8",
    "u8": "uint8",
    "s8": "int8",
    "b16": "uint16",
    "u16": "uint16",
    "s16": "int16",
    "b32": "uint32",
    "u32": "uint32",
    "s32": "int32",
    "f32": "float32",
    "b64": "uint64",
    "u64": "uint64",
    "s64": "int64",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "tf32": "float32",  # as stored: the tensor cores leave out the lowest 13 bits
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
