"""First operands of WGMMA that threads hold in registers."""
