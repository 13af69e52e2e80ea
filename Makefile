# `make` alone lists the targets. The first target that needs .venv creates it.

BIN := .venv/bin
ARGS ?=

# The tests start hundreds of processes: they must not compile the package each time, and they check Python's usual
# buffering.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED

.PHONY: help demo test test-all check chaos scale bench bench-quick bench-web screenshot clean venv servers

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  ARGS='…' goes to demo, test, chaos and bench; PYTHON=… selects the interpreter for a new .venv"

demo: venv ## run sample jobs of every kind on a temporary SQLite file
	@$(BIN)/packhorse demo $(ARGS)

test: venv servers ## run the tests that every change must pass, two at a time
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not long" tests $(ARGS)

test-all: venv servers ## the same, plus long random searches, every mutant, every storage and every browser look
	PACKHORSE_MODEL_EXAMPLES=$${PACKHORSE_MODEL_EXAMPLES:-300} $(BIN)/python -m pytest -n 2 --dist worksteal tests $(ARGS)

check: venv ## lint, format, types, import layers, stray files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/biome ci --error-on-warnings packhorse/web/static
	$(BIN)/djlint --lint --quiet packhorse/web/templates
	@$(check-lines)
	$(BIN)/mypy packhorse bench $(wildcard tests/typing)
	$(BIN)/lint-imports --no-logo
	@$(check-tree)

chaos: venv ## kill, freeze and stop workers at random and check that no job is lost; takes minutes
	$(BIN)/python -m tests.system.chaos $(ARGS)

scale: venv servers ## check the query plans of PostgreSQL and MariaDB with a million waiting jobs
	PACKHORSE_SCALE=1000000 $(BIN)/python -m pytest tests/storage/postgres/test_plans.py tests/storage/mysql/test_plans.py $(ARGS)
	PACKHORSE_SCALE=200000 $(BIN)/python -m pytest -k "long_transaction" \
		tests/storage/postgres/test_failures.py tests/storage/mysql/test_failures.py $(ARGS)

bench: venv ## race Packhorse and its peers for 45 minutes; writes docs/benchmarks.md
	$(BIN)/python -m bench --write $(ARGS)

bench-quick: venv ## a race of less than five minutes on SQLite and Redis; only prints
	$(BIN)/python -m bench --quick $(ARGS)

bench-web: venv ## time every page with a million jobs on each storage, and a worker that twenty people watch
	$(BIN)/python -m bench.web $(ARGS)

screenshot: venv ## make docs/overview.png again; needs a Chromium
	@PYTHON=$(BIN)/python docs/screenshot.sh

clean: ## remove .venv, .bench, caches and builds
	rm -rf .venv .bench .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

venv:
	@sh requirements/venv.sh

servers:
	@sh requirements/servers.sh

# Lock files of other tools would contradict requirements/dev.txt, and a path into a home directory works on one machine
# only. Untracked files are checked too.
LOCKS := (^|/)(uv\.lock|poetry\.lock|pdm\.lock|Pipfile\.lock|package-lock\.json|yarn\.lock|pnpm-lock\.yaml)$$
HOMES := (^|[^[:alnum:]_.:/-])/(home|Users|root)/[[:alnum:]_.]

# A line of a template that cannot be read in a review is too long.
define check-lines
if awk 'length > 200 { print FILENAME ":" FNR ": longer than 200 characters"; found = 1 } END { exit !found }' \
    packhorse/web/templates/*.html; then exit 1; fi
endef

define check-tree
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then \
    echo "Not a git checkout: no search for lock files and home paths."; \
elif git ls-files --cached --others --exclude-standard | grep -E '$(LOCKS)'; then \
    echo "These lock files do not belong here: versions are pinned in requirements/dev.txt."; exit 1; \
elif git grep --untracked -nIE '$(HOMES)'; then \
    echo "These lines contain a path into a home directory."; exit 1; \
else \
    echo "No stray lock files, no home paths."; \
fi
endef
