"""GPUs to schedule for."""

from tvm.target import Target


def gpu_of_sms(count):
    """Return a target that says how many SMs its GPU has."""
    return Target({"kind": "cuda", "arch": "sm_90a", "feature.num_sms": count})
