"""Implementation of `verify` and `simulate`; users import `tvm_hopper.simulation`."""
