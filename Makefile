# make test     create .venv if needed, install, run the tests, but for the slowest
# make slow     run those
# make example  create .venv if needed, install, train the example
# make lint     ruff and mypy
# make build    compile the C++ core; test and example do it when a source is newer than the library
# make vendor   create .venv-vendor, with torch_npu: the tests that call the operators through it find it there
# make oldest   create .venv-oldest, with the oldest MindSpore that is supported, and run the CPU's tests on it
# make coverage run all tests, then say which lines and branches none of them reached
# make zoo      put MindSpore Transformers into build/mindformers: the tests that run its classes find it there

VENV := .venv
VENDOR := .venv-vendor
OLDEST := .venv-oldest
OLDEST_TESTS := tests/test_checks.py tests/test_direct.py tests/test_hyper_connection.py $(wildcard tests/test_mhc_*.py)
ZOO := build/mindformers
# a file's tests in one process, which then does once what they share; tests/conftest.py orders the files
TOGETHER := -n 2 --dist loadfile --no-loadscope-reorder
SUITABLE := import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10 python3.9; do \
	$$p -c '$(SUITABLE)' 2>/dev/null && echo $$p && break; done)

CSRC := ms_mhc/csrc
LIBRARY := $(CSRC)/libms_mhc_cpu.so
COMPILER := $(firstword $(foreach c,$(CXX) g++ c++ clang++,$(shell command -v $(c))))


# Without a compiler the package works all the same, only slower.
test slow example oldest coverage: $(if $(COMPILER),$(LIBRARY))
.PHONY: test slow example lint build vendor zoo oldest coverage clean

test: $(VENV)/installed
	$(VENV)/bin/python -m pytest $(TOGETHER) -m "not slow"

slow: $(VENV)/installed
	$(VENV)/bin/python -m pytest $(TOGETHER) -m slow

example: $(VENV)/installed
	$(VENV)/bin/python -m model_zoo_example.train --config configs/tiny.yaml

lint: $(VENV)/installed
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy

vendor: $(VENDOR)/made

$(VENDOR)/made: $(VENV)/installed .ci/vendor
	.ci/vendor $(VENV)
	@touch $@

# MindSpore ops take most of the time: of these only graph mode in float32.
oldest: $(OLDEST)/made
	test -f $(OLDEST)/missing || PYTHONPATH=$(CURDIR) $(OLDEST)/bin/python -m pytest -n 2 \
		-m "not slow" -k "not (composite and (pynative or jit or float16))" $(OLDEST_TESTS)

$(OLDEST)/made: $(VENV)/installed .ci/oldest
	.ci/oldest $(VENV)
	@touch $@

zoo: $(ZOO)/made

$(ZOO)/made: $(VENV)/installed .ci/zoo
	.ci/zoo $(VENV)
	@touch $@

# An empty cache, so that what builds the host CANN is counted, too.
coverage: $(VENV)/installed
	$(VENV)/bin/python -m pip install --quiet --editable '.[coverage]'
	$(VENV)/bin/python -m coverage erase
	rm -rf build/coverage
	-XDG_CACHE_HOME=$(CURDIR)/build/coverage $(VENV)/bin/python -m coverage run -m pytest -m "not slow"
	$(VENV)/bin/python -m coverage combine --quiet
	$(VENV)/bin/python -m coverage report

$(VENV)/installed: pyproject.toml setup.py
	@test -n "$(PYTHON)" || { echo "No Python 3.9 to 3.12 found; name one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --editable '.[test,lint]'
	@touch $@

build: $(VENV)/installed
	$(VENV)/bin/python $(CSRC)/build.py

$(LIBRARY): $(wildcard $(CSRC)/*.cc $(CSRC)/*.h) $(CSRC)/build.py | $(VENV)/installed
	$(VENV)/bin/python $(CSRC)/build.py --if-changed

clean:
	rm -rf $(VENV) $(VENDOR) $(OLDEST) build *.egg-info
