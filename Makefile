# What a developer needs to know is what `make` alone prints. The first target that wants .venv makes it.

BIN := .venv/bin
ARGS ?=

# The tests start hundreds of processes; each would have to compile the package again. And each is to print as it does
# where nobody has set how Python buffers.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED

.PHONY: help demo test test-all check chaos scale bench bench-quick bench-web screenshot clean venv servers

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  ARGS='…' is handed on to demo, test, chaos and bench; PYTHON=… picks the interpreter for a new .venv"

demo: venv ## see it work: sample jobs of every kind on a throw-away SQLite file
	@$(BIN)/packhorse demo $(ARGS)

test: venv servers ## run the tests, two at a time; what every change has to pass
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not long" tests $(ARGS)

test-all: venv servers ## the same, with long random searches, every mutant, and the browser in every look
	PACKHORSE_MODEL_EXAMPLES=$${PACKHORSE_MODEL_EXAMPLES:-300} $(BIN)/python -m pytest -n 2 --dist worksteal tests $(ARGS)

check: venv ## lint, format, types, import layers, and nothing in the tree that does not belong there
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/biome ci --error-on-warnings packhorse/web/static
	$(BIN)/djlint --lint --quiet packhorse/web/templates
	@$(check-lines)
	$(BIN)/mypy packhorse bench $(wildcard tests/typing)
	$(BIN)/lint-imports --no-logo
	@$(check-tree)

chaos: venv ## kill, freeze and stop workers at random, and see that no job is lost; for minutes, or as ARGS say
	$(BIN)/python -m tests.system.chaos $(ARGS)

scale: venv servers ## a million waiting and five million finished jobs: no statement of PostgreSQL or MariaDB walks over all
	PACKHORSE_SCALE=1000000 $(BIN)/python -m pytest tests/storage/postgres/test_plans.py tests/storage/mysql/test_plans.py $(ARGS)
	PACKHORSE_SCALE=200000 $(BIN)/python -m pytest -k "long_transaction" \
		tests/storage/postgres/test_failures.py tests/storage/mysql/test_failures.py $(ARGS)

bench: venv ## race Packhorse and its peers for 45 minutes; writes docs/benchmarks.md
	$(BIN)/python -m bench --write $(ARGS)

bench-quick: venv ## the same in less than five minutes, on SQLite and Redis; only prints
	$(BIN)/python -m bench --quick $(ARGS)

bench-web: venv ## a million jobs on each storage, every page, and a worker that twenty people watch
	$(BIN)/python -m bench.web $(ARGS)

screenshot: venv ## make docs/overview.png anew; needs a Chromium
	@PYTHON=$(BIN)/python docs/screenshot.sh

clean: ## remove .venv, .bench, caches and builds
	rm -rf .venv .bench .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

venv:
	@sh requirements/venv.sh

servers:
	@sh requirements/servers.sh

# Lock files of other tools would be a second truth beside requirements/dev.txt; a path into somebody's home
# works on one machine only. Files not yet added are looked at too.
LOCKS := (^|/)(uv\.lock|poetry\.lock|pdm\.lock|Pipfile\.lock|package-lock\.json|yarn\.lock|pnpm-lock\.yaml)$$
HOMES := (^|[^[:alnum:]_.:/-])/(home|Users|root)/[[:alnum:]_.]

# A line of a template that cannot be read in a review is too long.
define check-lines
if awk 'length > 200 { print FILENAME ":" FNR ": longer than 200 characters"; found = 1 } END { exit !found }' \
    packhorse/web/templates/*.html; then exit 1; fi
endef

define check-tree
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then \
    echo "Not a git checkout: the search for lock files and home paths is left out."; \
elif git ls-files --cached --others --exclude-standard | grep -E '$(LOCKS)'; then \
    echo "These lock files do not belong here: versions are pinned in requirements/dev.txt."; exit 1; \
elif git grep --untracked -nIE '$(HOMES)'; then \
    echo "These lines hold a path into somebody's home directory."; exit 1; \
else \
    echo "No stray lock files, no home paths."; \
fi
endef
