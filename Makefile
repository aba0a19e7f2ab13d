# Everything is run from here; `make help` lists the targets. The .venv is made when it is missing or stale.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

REPO := $(CURDIR)
# The folder in which make was called, also under `make -C`: a relative PHOTOS counts from there.
CALLED_FROM := $(PWD)
PYTHON ?= python3
# For pip, such as the index of a CPU-only torch.
PIP_ARGS ?=
# For Maven, such as -T1 (with -o it makes no code from the .proto files); and --unsigned, for an APK without a signature.
MVN_ARGS ?=
APK_ARGS ?=
TO ?=
export TO
PHOTOS ?=
export PHOTOS
# For `make same`: the commit to compare with, and such as --expect study/fedns-encoded.
BASE ?=
SAME_ARGS ?=
# For `make papers`: names of studies; none: all.
STUDIES ?=
export BASE

# The slow and the long tests, in parts that are to take an hour at most. What a commit has passed is kept in .slow.
SLOW_PARTS := 'tests/test_*.py tests/android tests/mutants tests/papers tests/proto tests/server' \
  tests/edge_client tests/export tests/fedlens \
  'tests/integration/test_[a-g]*' tests/integration/test_hostile_requests.py \
  'tests/integration/test_[i-m]*' 'tests/integration/test_[n-z]*' elsewhere

VENV := $(REPO)/.venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two tests at a time, of one thread each: more threads than cores wait for each other. Those of one file stay together,
# since they share what is slow to make; files run in the order that tests/conftest.py gives them.
PYTEST := OMP_NUM_THREADS=1 '$(BIN)/pytest' -n 2 --dist loadfile --no-loadscope-reorder

# What .ci/run tests beside Android's build.
APART := tests/edge_client tests/export tests/proto

.PHONY: help demo test test-slow test-ci test-ci-apart test-ci-rest same size check bench papers results docs vectors android android-publish proto freeze-wire pins clean install

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

install: $(STAMP) ## make .venv with everything in it

$(STAMP): pyproject.toml constraints.txt
	@if [ -L '$(VENV)' ]; then
	  echo "$(VENV) is a symbolic link: installing would point the environment behind it at this checkout; remove the link" >&2
	  exit 1
	fi
	if ! '$(BIN)/python' -c '' 2>/dev/null; then
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "FedLens needs Python 3.11 or newer (PYTHON=...)")'
	  rm -rf '$(VENV)'
	  $(PYTHON) -m venv '$(VENV)'
	fi
	'$(BIN)/python' -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e '.[dev]'
	touch '$@'

demo: $(STAMP) ## a whole federation on this machine; PHOTOS=DIR takes your own images; the report is demo/report.html
	@cd '$(CALLED_FROM)'
	'$(BIN)/fedlens' demo --out '$(REPO)/demo' $${PHOTOS:+--photos "$$PHOTOS"}

test: $(STAMP) ## the tests, but for the slow ones
	@$(PYTEST)

test-slow: $(STAMP) ## the slow and the long tests: kills, races, large models; a run that was stopped goes on
	@kept=.slow/$$({ git rev-parse HEAD; git diff HEAD; } | sha256sum | cut -c1-16)
	mkdir -p "$$kept"
	for part in $(SLOW_PARTS); do
	  done=$$kept/$$(tr -c 'a-z\n' - <<<"$$part")
	  [[ -e "$$done" ]] && continue
	  echo "-- $$part" >&2
	  case $$part in
	    # A single file has only one worker unless its tests are dealt out.
	    *hostile*) $(PYTEST) -m 'slow or long' --dist load $$part ;;
	    # At the end hundreds of databases are removed, for which no test's time limit is meant.
	    elsewhere) FEDLENS_TEST_STATE=elsewhere $(PYTEST) -m 'not long' -o timeout_func_only=true tests/server ;;
	    *) $(PYTEST) -m 'slow or long' $$part ;;
	  esac
	  touch "$$done"
	done

test-ci: test-ci-apart test-ci-rest ## all but the long tests, as .ci/run does

# Tests that need nothing of Android's, and the others.
test-ci-apart: $(STAMP)
	@$(PYTEST) -m 'not long' $(APART)

test-ci-rest: $(STAMP)
	@$(PYTEST) -m 'not long' $(APART:%=--ignore=%)

same: $(STAMP) ## numbers and models of fixed federations; BASE=COMMIT compares with what that commit gives
	@'$(BIN)/python' -m tests.same $${BASE:+--base "$$BASE"} $(SAME_ARGS)

size: $(STAMP) ## lines of Python that hold code, by package; BASE=COMMIT sets them beside a commit's
	@'$(BIN)/python' -m bench.size $${BASE:+--base "$$BASE"}

check: $(STAMP) ## style, types, wire schema, generated code
	@'$(BIN)/ruff' check
	'$(BIN)/ruff' format --check
	'$(BIN)/mypy'
	'$(BIN)/mypy' -p bench -p papers
	'$(BIN)/python' -m papers.pages --check
	'$(BIN)/mypy' android_demo/apk.py
	'$(BIN)/pyright'
	cd proto
	'$(BIN)/buf' lint
	'$(BIN)/buf' breaking --against v1.binpb
	fresh=$$(mktemp -d)
	trap 'rm -rf "$$fresh"' EXIT
	'$(BIN)/python' -m grpc_tools.protoc -I. --python_out="$$fresh" --pyi_out="$$fresh" fedlens_proto/v1/*.proto
	diff -r -x __pycache__ -x __init__.py -x '*.proto' "$$fresh/fedlens_proto/v1" fedlens_proto/v1 ||
	  { echo 'generated code is stale: run `make proto`' >&2; exit 1; }

bench: $(STAMP) ## the benchmark table; docs/benchmarks.md is written anew
	@'$(BIN)/python' -m bench.run

papers: $(STAMP) ## the studies behind docs/results, as far as runs are missing; many hours; PHOTOS=DIR holds the data sets
	@cd '$(CALLED_FROM)'
	PYTHONPATH='$(REPO)' '$(BIN)/python' -m papers.run --photos "$${PHOTOS:?name the folder of the data sets: make papers PHOTOS=DIR}" $(STUDIES)

results: $(STAMP) ## the pages of docs/results, from the kept runs
	@'$(BIN)/python' -m papers.pages

docs: $(STAMP) ## write the commands' --help into docs/commands.md anew, the rules into docs/vetting.md, and the example's code into docs/android.md
	@'$(BIN)/python' -m tests.command_pages
	'$(BIN)/python' -m tests.vetting_page
	'$(BIN)/python' -m tests.android.guide

vectors: $(STAMP) ## write the test vectors for clients in other languages anew, tests/vectors/
	@'$(BIN)/python' -m tests.vectors.make

android: $(STAMP) ## the Android SDK and app: tests, style, a debug APK; needs Maven, npm, apksigner and a JDK, 17 or newer
	@for tool in mvn javac npm; do
	  command -v "$$tool" >/dev/null || { echo "make android needs Maven, npm and a JDK, 17 or newer: no $$tool" >&2; exit 1; }
	done
	[[ '$(APK_ARGS)' == *--unsigned* ]] || command -v apksigner >/dev/null ||
	  { echo 'make android needs apksigner (apt install apksigner), or APK_ARGS=--unsigned' >&2; exit 1; }
	found=$$(javac -version 2>&1 | sed 's/^javac \([0-9]*\).*/\1/')
	(( found >= 17 )) || { echo "make android needs a JDK, 17 or newer: javac is of version $$found" >&2; exit 1; }
	cd android_demo
	mvn --quiet -Ppublish $(MVN_ARGS) clean verify
	'$(BIN)/python' apk.py $(APK_ARGS)

android-publish: ## the Android SDK as a Maven repository, android_demo/target/repository or TO=DIR; needs Maven and a JDK, 17 or newer
	@cd android_demo
	mvn --quiet -Ppublish $(MVN_ARGS) -DskipTests -pl sdk -am $${TO:+"-Dfedlens.published=$$(cd '$(CALLED_FROM)' && realpath -m "$$TO")"} package
	echo "the SDK is in $${TO:-android_demo/target/repository}"

proto: $(STAMP) ## generate Python code from the .proto files
	@cd proto
	'$(BIN)/python' -m grpc_tools.protoc -I. --python_out=. --pyi_out=. fedlens_proto/v1/*.proto

freeze-wire: $(STAMP) ## make the present wire schema the one that later ones must not break
	@cd proto
	'$(BIN)/buf' build -o v1.binpb

pins: $(STAMP) ## write constraints.txt from what is installed
	@{ sed -n '/^#/p' constraints.txt
	  '$(BIN)/python' -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9_.-]+==' | sed 's/+[a-z0-9.]*$$//'; } > constraints.new
	mv constraints.new constraints.txt

clean: ## remove what was built, .venv too
	@rm -rf .venv demo dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf android_demo/target android_demo/*/target android_demo/vendor/*/target
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
