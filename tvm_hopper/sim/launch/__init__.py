"""What a launch is given: the host function, its arguments, tensors and tensor maps."""
