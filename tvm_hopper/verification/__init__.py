"""How a module is run and judged without a GPU; users import `tvm_hopper.simulation`."""
