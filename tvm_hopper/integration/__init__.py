"""How TVM finds us: what `import tvm` runs, and what is changed in TVM."""
