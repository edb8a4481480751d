# Every target makes the virtual environment that it needs: Python 3.11 or later and make are enough to start.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   := $(VENV)/.ready-for-demo
DOCS   := $(VENV)/.ready-for-docs
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SECONDS ?= 60
JOBS    ?= 1
# Only fuzzing needs it, and it has no wheels for some platforms: so it is no part of the environment.
ATHERIS := atheris==3.0.0

.DEFAULT_GOAL := help
.PHONY: help demo test check bench compat nvflare openfl soak fuzz results docs report format lock notices sbom dist audit clean

help:  ## what there is to make
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 10

$(DEMO): pyproject.toml constraints.txt
	@echo "installing klms with torch and matplotlib into $(VENV), once: some minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@$(PIP) -e '.[learn,plots]'
	@echo "compiling the kernels, once: about a minute"
	@$(BIN)/klms warmup
	@touch $@

$(READY): $(DEMO)
	@echo "installing Flower and the tools of developers into $(VENV), once: some minutes"
	@$(PIP) -e '.[all]'
	@touch $@

$(DOCS): $(DEMO)
	@echo "installing what makes the site and the release into $(VENV), once: about a minute"
	@$(PIP) -e '.[simulation,docs,release]'
	@touch $@

demo: $(DEMO)  ## MNIST with FedAvg, dense updates at 0.1 bits and FedPM-KLMS: accuracy and bytes, a picture
	@$(BIN)/klms demo

test: $(READY)  ## everything that must pass
	$(BIN)/python -m pytest -m 'not soak' -n 2 --dist worksteal

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

nvflare:  ## the adapter for NVFlare, in an environment of its own
	$(PYTHON) -m venv $(VENV)-nvflare
	$(VENV)-nvflare/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(VENV)-nvflare/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[learn,nvflare]' pytest hypothesis
	$(VENV)-nvflare/bin/python -m pytest tests/nvflare

openfl:  ## the adapter for OpenFL, in an environment of its own: its pins clash with constraints.txt
	$(PYTHON) -m venv $(VENV)-openfl
	$(VENV)-openfl/bin/python -m pip install --quiet --disable-pip-version-check $$(grep ^torch== constraints.txt)
	$(VENV)-openfl/bin/python -m pip install --quiet --disable-pip-version-check -e '.[openfl]' pytest hypothesis
	$(VENV)-openfl/bin/python -m pytest tests/openfl

soak: $(READY)  ## the long tests: millions of hostile messages
	$(BIN)/python -m pytest -m soak

fuzz: $(READY)  ## coverage-guided fuzzing of all readers, SECONDS=60 for each; TARGETS='codec frame', JOBS=2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(ATHERIS)
	$(BIN)/python -m fuzz.run --seconds $(SECONDS) --jobs $(JOBS) $(if $(RECORD),--record $(RECORD)) $(TARGETS)

results: $(READY)  ## docs/results.md from the JSON under results/ (klms experiment run makes that)
	$(BIN)/klms results

docs: $(DOCS)  ## site/index.html: the documents, the API and the notebooks, which are executed, as pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

report: $(READY)  ## report/index.html: what is under runs/, as a page
	$(BIN)/klms report runs --out report

format: $(READY)  ## make `check` happy about the format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(READY)  ## constraints-hashed.txt: digests for every pin of constraints.txt, all but torch
	$(BIN)/uv pip compile constraints.txt --quiet --no-deps --generate-hashes --no-annotate --no-emit-package torch \
	    --custom-compile-command 'make lock' --output-file constraints-hashed.txt

notices: $(READY) $(DOCS)  ## THIRD_PARTY.md: packages and their licences
	$(BIN)/python tools/supply_chain.py notices > notices.new && mv notices.new THIRD_PARTY.md

sbom: $(READY)  ## dist/sbom.json: what klms is installed with, in CycloneDX
	mkdir -p dist
	$(BIN)/python tools/supply_chain.py sbom > dist/sbom.json

dist: $(DOCS)  ## dist/: wheel and sdist, checked, then tried in empty environments made by PYTHON
	rm -rf dist/klms-*
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/klms-*
	$(PYTHON) tools/try_release.py dist

audit:  ## known vulnerabilities of the pinned versions; needs the internet
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)-audit/bin/pip-audit --strict --require-hashes --disable-pip -r constraints-hashed.txt || \
	    { echo 'audit: a version is vulnerable, or the data of pip-audit cannot be reached from here (see above)'; exit 1; }

clean:  ## back to a fresh clone
	rm -rf $(VENV) $(VENV)-audit $(VENV)-nvflare $(VENV)-openfl .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
