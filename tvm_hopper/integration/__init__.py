"""Integration with TVM: what `import tvm` runs, and what changes in TVM."""
