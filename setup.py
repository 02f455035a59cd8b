"""Build only: which folder holds which package (metadata is in pyproject.toml)."""

from setuptools import find_packages, setup

FOLDERS = {
    "tvm_hopper": "tvm_hopper",
    "tvm_hopper.transforms": "transforms",
    "tvm_hopper.codegen_patches": "codegen_patches",
}
# The links tvm_hopper/transforms and tvm_hopper/codegen_patches would be found twice: this mapping
# alone builds, so that no artefact depends on a link.
LINKS = ("transforms", "codegen_patches")
PACKAGES = {
    ".".join([name, *rest])
    for name, folder in FOLDERS.items()
    for rest in [[], *([p] for p in find_packages(folder) if p.split(".")[0] not in LINKS)]
}

if __name__ == "__main__":
    setup(packages=sorted(PACKAGES), package_dir=FOLDERS)
