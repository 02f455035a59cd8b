"""Golden kernels, their seeded mutations, and what each mutation must be found as."""
