# The modules of this repository, without the one that pins the tools.
MODULES := $(filter-out tools,$(patsubst %/,%,$(dir $(shell git ls-files go.mod '*/go.mod'))))
STATICCHECK := go tool -modfile=$(CURDIR)/tools/go.mod staticcheck

.PHONY: help test race lint bench microbench seeds check chaos soak fuzz peers nightly model evidence evidence-check mutants vet-public interop site quickstart ci

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## test the library
	go test ./...

race: ## test the library five times under the race detector
	RLOCK_THOROUGH=1 go test -race -count=5 -timeout 60m ./...

lint: ## gofmt, go vet and staticcheck, in every module; and how files and packages know each other
	@out=$$(gofmt -l .) && { [ -z "$$out" ] || { echo "gofmt wants to change:"; echo "$$out"; exit 1; }; }
	@set -e; for m in $(MODULES); do echo "lint $$m"; (cd $$m && go vet ./... && $(STATICCHECK) ./...); done
	cd playground && GOOS=js GOARCH=wasm go vet ./...
	cd tools && go run ./layers -dir ..

bench: ## measure beside other libraries and write docs/benchmarks.md and bench/RESULTS.md, in a quarter of an hour (ARGS='-quick -out /tmp/quick')
	cd bench && go run . -out .. $(ARGS)

microbench: ## benchmarks of every module, in the form that benchstat reads
	@set -e; for m in $(MODULES); do (cd $$m && go test -run '^$$' -bench . -benchmem -count 6 -timeout 2h ./...); done

seeds: ## the simulation with many seeds (SEEDS=500)
	go test -timeout 2h -count=1 ./internal/sim -args -sim.seeds $${SEEDS:-500}

check: ## histories of processes that are killed, stopped and cut off, explained by models, for a minute with a new seed (needs redis-server; ARGS='-seed=7')
	cd check && RLOCK_REQUIRE_REDIS=1 go test -count=1 -timeout 20m -v . -args -long $(ARGS)

chaos: ## random faults of servers and processes in each topology, for a minute each with a new seed: what holds, and what is lost (needs redis-server, gcc; ARGS='-for=1h -seed=7'; TIMEOUT=5h for longer)
	cd check && RLOCK_REQUIRE_REDIS=1 go test -count=1 -v ./chaos -timeout $${TIMEOUT:-90m} -args -long $(ARGS)

peers: ## disturb this library and four others with the same faults, and write docs/peers.md, in six minutes (needs Java 17, Maven, redis-server)
	cd bench && go run ./faults -out .. $(ARGS)

soak: ## all types for an hour in one process, with a fault every 5 to 15 s and a new seed: nothing may grow (needs redis-server; ARGS='-for=10m -seed=7')
	cd check && RLOCK_REQUIRE_REDIS=1 go test -count=1 -v ./soak -run TestNothingGrowsUnderFire -timeout 5h -args -long $(ARGS)

fuzz: ## new inputs for each fuzz test, for 30 s each (ARGS='-t 5m FuzzReplies')
	.ci/fuzz $(ARGS)

nightly: ## what may find a fault that nobody knows: new seeds, killed processes, ten thousand of everything, Redisson (FRESH=12 seeds a scenario)
	.ci/nightly

model: ## check the model of RedLock's tokens (needs spin and gcc)
	model/check

evidence: ## run the tests that docs/guarantees.md names and all planted mistakes, and write docs/evidence.md, in an hour (needs all that nightly needs but databases; ARGS='-only test/quorum/' for some of them)
	cd tools && go run ./evidence -dir .. $(ARGS)

evidence-check: ## each promise has a test whose last run passed and has whole figures, and docs/evidence.md is of that run
	cd tools && go run ./evidence -dir .. -check

mutants: ## put each mistake of tools/mutants/mutants.txt into the code, and run the test that has to notice it (ARGS='-only fair/enter', or '-some 15')
	cd tools && go run ./mutants -dir .. $(ARGS)

vet-public: ## run rlockvet over public programs, ported to rlock, in ten minutes (needs the Go module proxy; ARGS='-only gitea')
	cd rlockvet && go run ./internal/vetpublic $(ARGS)

interop: ## run beside Redisson (needs Java 17, Maven, redis-server; ARGS=writes docs with ARGS=-interop.update)
	cd interop && RLOCK_NIGHTLY=1 RLOCK_REQUIRE_INTEROP=1 go test -count=1 -timeout 20m . $(ARGS)

site: ## build the site of docs/ into .site/html, strictly (needs Python 3.11 with venv)
	tools/site/build

quickstart: ## the first program of a newcomer
	go run ./examples/quickstart

ci: ## everything that a change has to pass; installs what is missing with apt
	.ci/run
