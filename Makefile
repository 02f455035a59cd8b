# A fresh machine needs python3 (3.10 to 3.13) with pip, and make; everything else goes to .venv.
# To use an environment of your own: make test PY=python
PYTHON ?= python3
VENV := .venv
PY ?= $(VENV)/bin/python
READY := $(if $(filter $(VENV)/bin/python,$(PY)),$(VENV)/.installed)
PYTEST := $(PY) -m pytest -q
JOBS ?= 2
# Each worker runs a half of the tests in order, so that a module's fixtures are made once.
WORKERS := -n $(JOBS) --dist worksteal
# Tests start many processes, of which each would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=
NOTEBOOKS := $(wildcard tutorials/*.ipynb)

.PHONY: help demo quick test test-all seeded fuzz lint doctor notebooks clean

help:                   ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /|/' | \
	  awk -F'|' '{ printf "make %-12s %s\n", $$1, $$2 }'

$(VENV)/.installed: pyproject.toml setup.py
	@echo "installing tvm_hopper and what its tests and documents need into $(VENV) (a few minutes, once)"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -e ".[tests,docs,tuning]"
	touch $@

demo: $(READY)          ## install into .venv, then schedule, compile, explain, simulate one GEMM; with a GPU also run it
	$(PY) examples/demo.py

quick: $(READY)         ## lint, layout and the tests of what differs from main, within a minute
	$(PY) -m tests.quick

test: $(READY)          ## what every change must pass: 15 minutes on 2 cores, no GPU
	$(PYTEST) $(WORKERS) -m "not slow and not gpu"

test-all: $(READY)      ## the whole cover, the notebooks in Jupyter, and with a GPU the tests that need one
	$(PYTEST) $(WORKERS)
	$(if $(NOTEBOOKS),$(PYTEST) --nbmake -n $(JOBS) $(NOTEBOOKS))

.PHONY: coverage
coverage: $(READY)      ## what `make test` reaches of tvm_hopper; fails under the floor in pyproject.toml
	$(PYTEST) $(WORKERS) -m "not slow and not gpu and not timing" --cov --cov-report=term

seeded: $(READY)        ## the table of seeded bugs: each must be found, each control clean
	$(PY) -m tests.seeded

fuzz: $(READY)          ## random programs and schedules: SEED= with MINUTES= or CASES=, REPORT= a file
	$(PY) -m tests.fuzz --seed $(or $(SEED),0) --jobs $(JOBS) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(CASES),--cases $(CASES)) $(if $(REPORT),--report $(REPORT))

.PHONY: mutants
mutants: $(READY)       ## mutants of emitted kernels: COUNT= (0: all) SEED= OPERATORS=places REPORT= a file
	$(PY) -W ignore -m tests.mutants --count $(or $(COUNT),2000) --seed $(or $(SEED),0) --jobs $(JOBS) \
	  $(if $(OPERATORS),--operators $(OPERATORS)) $(if $(REPORT),--report $(REPORT))

lint: $(READY)          ## style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

.PHONY: pictures
pictures: $(READY)      ## the pictures in docs/images, from runs in the simulator
	$(PY) -W ignore -m docs.pictures

notebooks: $(READY)     ## run the tutorials and keep their outputs
	$(PY) -W ignore -m docs.notebooks

.PHONY: docs
docs: $(READY)          ## the site in build/docs: pages, tutorials, API reference; a dead link is an error
	$(PY) -m sphinx -q -W --keep-going -b html -c docs . build/docs

# A fresh environment beside the checkout: what the wheel lacks is not there.
.PHONY: test-wheel
TESTS ?= tests
test-wheel:             ## build the wheel, install it alone, run the tests of `make test` on it
	rm -rf build/lib build/wheel dist
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip wheel -q --no-deps --wheel-dir dist .
	build/wheel/bin/python -m pip install -q "$$(ls dist/*.whl)[tests,docs,tuning]"
	build/wheel/bin/pytest -o pythonpath= -q -n $(JOBS) -m "not slow and not gpu" $(TESTS)

doctor: $(READY)        ## what this machine has and lacks
	$(PY) -m tvm_hopper doctor

.PHONY: resolve
resolve: $(READY)       ## whether pip resolves this package beside PyTorch 2.8 and later; PYTHONS= interpreters
	$(PY) -m benchmarks.resolve $(if $(PYTHONS),--python $(PYTHONS))

clean:                  ## remove .venv and what was built
	rm -rf $(VENV) build dist *.egg-info
