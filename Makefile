# Every target sets up what it needs on a machine that has Python, make and the package registries.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BROWSER_READY := $(VENV)/.browser-ready
RELEASE_READY := $(VENV)/.release-ready
VISION ?= .venv-vision
RAY ?= .venv-ray
DOCS ?= .venv-docs

.DEFAULT_GOAL := help
.PHONY: help demo results figures tables soak attack test test-browser test-vision test-ray test-matrix check bench bench-scale release clean

help:             ## What there is to make
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1	/' | expand -t 20

demo: $(READY)    ## Compares the recommended rule, OrderDP, InfoBatch and the controls on real images
	$(BIN)/python examples/demo.py

test: $(READY)    ## Runs all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-browser: $(BROWSER_READY)  ## Looks at the report in Chromium; pictures go to build/pictures
	$(BIN)/python -m pytest tests/browser $(ARGS)

test-vision: $(VISION)/.ready  ## With timm and torchvision, in an environment of their own (6 GB)
	$(VISION)/bin/python -m pytest tests/vision $(ARGS)

test-ray: $(RAY)/.ready  ## With Ray Train, in an environment of its own: two workers, one of them killed
	$(RAY)/bin/python -m pytest -s tests/ray $(ARGS)

test-matrix:      ## Uses the wheel in clean environments: Python 3.10 to 3.13, oldest and newest torch (20 GB, an hour)
	$(PYTHON) -m tools.matrix $(ARGS)

check: $(READY)   ## Lints, checks types, spelling, the direction of imports and the workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/zizmor --offline --quiet --strict-collection .github

bench: $(READY)   ## Measures, as JSON lines: ratios of two things timed in the same run
	$(BIN)/python -m benchmarks

results: $(READY) ## Fills in the tables of docs/results from the records there
	$(BIN)/python -m tools.results fill

figures: $(READY) ## Draws the README's picture from the records of the demo
	$(BIN)/python -m tools.results picture

tables: $(READY)  ## Fills in the tables of docs/policies and docs/coresets from the classes
	$(BIN)/python -m tools.method_tables

.PHONY: docs
docs: $(DOCS)/.ready  ## Builds the site into build/site; a broken link or a missing docstring fails
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

soak: $(READY)    ## Kills, restarts, slows down and feeds NaN to trainings for ten minutes
	$(BIN)/python -m tools.soak $(ARGS)

attack: $(READY)  ## Random uses, extreme numbers and damaged states and files for ten minutes
	$(BIN)/python -m tools.attack $(ARGS)

bench-scale: $(READY)  ## Draws at up to 10^9 samples, and on 64 simulated ranks; some minutes and 6 GB
	$(BIN)/python -m benchmarks scale

release: $(RELEASE_READY)  ## Checks, builds and writes all that a release needs, and stops before uploading
	$(BIN)/python -m tools.release $(ARGS)

clean:            ## Removes the environment and all caches
	rm -rf $(VENV) $(VISION) $(RAY) $(DOCS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[workbench,datasets,test,check]'
	@touch $(READY)

# The newest of all: torchvision goes with one version of torch only, and not with a build for processors alone.
$(VISION)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VISION)
	$(VISION)/bin/python -m pip install --quiet --upgrade pip
	$(VISION)/bin/python -m pip install --quiet --editable '.[vision,workbench,dali,grain]' pytest
	@touch $(VISION)/.ready

# Ray pins libraries that others pin differently, so it is kept apart.
$(RAY)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --upgrade pip
	$(RAY)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,ray]' pytest
	@touch $(RAY)/.ready

# The site reads the sources and does not import them: the extra without the library, so without torch.
$(DOCS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --upgrade pip
	$(DOCS)/bin/python -c "from pip._vendor import tomli; print(*tomli.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" > $(DOCS)/requirements.txt
	$(DOCS)/bin/python -m pip install --quiet --constraint constraints.txt --requirement $(DOCS)/requirements.txt
	@touch $(DOCS)/.ready

# Debian's browser and driver are of one version, so nothing has to be matched or fetched by the tests themselves.
$(BROWSER_READY): $(READY)
	@if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then \
		if [ "$$(id -u)" -eq 0 ]; then \
			apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core; \
		else \
			echo "This needs Chromium and its driver: sudo apt-get install chromium chromium-driver" >&2; exit 1; \
		fi; \
	fi
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	@touch $(BROWSER_READY)

$(RELEASE_READY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[release]'
	@touch $(RELEASE_READY)
