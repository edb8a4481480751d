# Every target makes the virtual environment that it needs: Python 3.11 or later and make are enough to start.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check bench compat soak results report format clean

help:  ## what there is to make
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,learn,flower,simulation,plots,privacy,trackers]'
	@touch $@

demo: $(READY)  ## MNIST with and without: FedAvg, FedPM, FedPM-KLMS, in a few minutes
	@$(BIN)/klms demo

test: $(READY)  ## everything that must pass
	$(BIN)/python -m pytest -m 'not soak' -n 2 --dist loadfile

check: $(READY)  ## lint, format, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## how fast the codec is, beside the paper's algorithm in NumPy
	$(BIN)/klms bench codec

compat: $(READY)  ## the two lines with the oldest and the newest release of flwr that klms takes
	for version in 1.22.0 1.42.0; do \
	    $(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/flwr-$$version --upgrade flwr==$$version && \
	    PYTHONPATH=$(VENV)/flwr-$$version $(BIN)/python -m pytest -q -m 'not soak' tests/flower/test_compressed.py \
	        tests/flower/test_model_downlink.py tests/flower/test_downlink.py || exit 1; \
	done

soak: $(READY)  ## the long tests: millions of hostile messages
	$(BIN)/python -m pytest -m soak

results: $(READY)  ## docs/results.md from the JSON under results/ (klms experiment run makes that)
	$(BIN)/klms results

report: $(READY)  ## report/index.html: what is under runs/, as a page
	$(BIN)/klms report runs --out report

format: $(READY)  ## make `check` happy about the format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## back to a fresh clone
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
