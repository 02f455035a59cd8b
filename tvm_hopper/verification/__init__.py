"""How a module is run and checked without a GPU; users import `tvm_hopper.simulation`."""
