# make demo   environment, then recipes/med3d_r1.toml in two processes, then its figures (2 CPU cores, about 9 minutes);
#             RECIPE=emrl: another of recipes/
# make demo FRESH=1   what ships fitted with the recipe is made anew too (about 30 minutes)
# make test   environment, then all tests but the slow ones and those of documents and benchmarks
# make test-all   those too; TURNS=1 those of an eighth of the files, by the commit's number, as CI does; TIMES=FILE keeps
#                 how long each took (JUnit XML)
# make site   the documentation as a site, build/site/site/index.html
# make fuzz   100,000 drawn answers through every installed task, rollout, tool and reward (about 15 minutes)
# make wheels   a wheel of the core and of every package, into dist/
# make bench  every claim of speed, measured side by side, into docs/results/benchmarks/README.md (about 40 minutes)
# make gpu-carry   the wheels that an offline GPU machine lacks, into gpu-carry/ (benchmarks/gpu.sh runs there)
# make smollm2   SmolLM2-135M-Instruct for recipes/smollm2.toml: a download of 93 MB, and 541 MB on disk
# make astra   Astra's 3D image encoder for encoder i3resnet: a download of 187 MB, and 235 MB on disk
# make niivue   NiiVue for the viewer's 3D, by npm (7 MB); building the package's wheel does it too
# make results   the demo over five seeds (about four hours on one core); RECIPE=medvol_r1: the other one (about five)
# make results SEED=23   one seed of it anew: red where a figure leaves what is kept (about 45 minutes; medvol_r1: 60)
PYTHON ?= python3
VENV ?= .venv
PROCESSES ?= 2
RECIPE ?= med3d_r1
BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal
unexport PYTHONDONTWRITEBYTECODE  # else every process compiles torch and all else anew, for 10 seconds
PLUGINS := $(wildcard plugins/*/pyproject.toml)
PACKAGES := $(patsubst %/pyproject.toml,-e ./%,$(PLUGINS))

.PHONY: venv demo test test-all lint docs site fuzz wheels bench gpu-carry smollm2 astra niivue results clean

venv: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt $(PLUGINS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "evidcore needs Python 3.11 or later, $(PYTHON) is $$($(PYTHON) --version). Try: make venv PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt -e '.[all,dev]' $(PACKAGES)
	touch $@

demo: venv
	OMP_NUM_THREADS=1 TORCH_CPP_LOG_LEVEL=ERROR $(BIN)/python -m torch.distributed.run --standalone --nproc_per_node $(PROCESSES) \
	  -m evidcore run recipes/$(RECIPE).toml $(if $(FRESH),--fresh)

test: venv
	$(PYTEST) -m "not slow and not nightly" --durations 20 --durations-min 1

test-all: venv
	$(PYTEST) --durations 40 --durations-min 10 $(if $(TURNS),--by-turns) $(if $(TIMES),--junitxml $(TIMES))

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: venv
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python docs/quotes.py
	$(BIN)/python docs/explanation/grpo_step.py

site: venv
	$(BIN)/python docs/site_pages.py

fuzz: venv
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fuzz_answers.py

wheels: venv
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . $(patsubst %/pyproject.toml,./%,$(PLUGINS))

bench: venv
	$(BIN)/python benchmarks/run_all.py

gpu-carry: venv
	rm -rf gpu-carry
	$(BIN)/python benchmarks/gpu_carry.py gpu-carry

smollm2: venv
	$(BIN)/python benchmarks/smollm2.py

astra: venv
	$(BIN)/python benchmarks/astra.py

niivue: venv
	$(BIN)/python -m evidcore_plugin_view.niivue

STUDY_of_med3d_r1 := phantom_learning
STUDY_of_medvol_r1 := phantom_boxes

results: venv
	$(BIN)/python benchmarks/$(STUDY_of_$(RECIPE)).py \
	  $(if $(SEED),--seeds $(SEED) --check,--seeds 17 18 19 20 21 --keep) docs/results/$(RECIPE)

clean:
	rm -rf $(VENV)
