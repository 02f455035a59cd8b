# A fresh machine needs python3 (3.10 to 3.13) with pip, and make; everything else goes to .venv.
# To use an environment of your own: make test PY=python
PYTHON ?= python3
VENV := .venv
PY ?= $(VENV)/bin/python
READY := $(if $(filter $(VENV)/bin/python,$(PY)),$(VENV)/.installed)
PYTEST := $(PY) -m pytest -q
JOBS ?= 2
NOTEBOOKS := $(wildcard tutorials/*.ipynb)

.PHONY: demo test test-all seeded lint doctor clean

$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -e ".[tests,docs,tuning]"
	touch $@

demo: $(READY)          ## schedule, compile, explain and simulate one GEMM; with a GPU also run it
	$(PY) examples/demo.py

test: $(READY)          ## what every change must pass: under 20 minutes on 2 cores, no GPU
	$(PYTEST) -n $(JOBS) -m "not slow and not gpu"
	$(if $(NOTEBOOKS),$(PYTEST) --nbmake -n $(JOBS) $(NOTEBOOKS))

test-all: $(READY)      ## the whole cover, and the tests that need a GPU where there is one
	$(PYTEST) -n $(JOBS)
	$(if $(NOTEBOOKS),$(PYTEST) --nbmake -n $(JOBS) $(NOTEBOOKS))

.PHONY: coverage
coverage: $(READY)      ## what `make test` reaches of tvm_hopper; fails under the floor in pyproject.toml
	$(PYTEST) -n $(JOBS) -m "not slow and not gpu" --cov --cov-report=term

seeded: $(READY)        ## the table of seeded bugs: each must be found, each control clean
	$(PY) -m tests.seeded

lint: $(READY)          ## style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

doctor: $(READY)        ## what this machine has and lacks
	$(PY) -m tvm_hopper doctor

clean:
	rm -rf $(VENV) build dist *.egg-info
