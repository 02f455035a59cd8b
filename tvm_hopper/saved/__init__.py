"""Saved kernels: `save` writes one file, `load` and C++ programs run it without a compiler.

`container.py` is the form of the file, `saving.py` makes it, `loading.py` opens it. Only
`saving.py` imports TVM.
"""
