# make test   all tests; needs Go alone, and ends with checks made, tests skipped and why
# make quick  short tests of the packages changed since main, and the house rules
# make modules  vets and tests the nested modules under scripts and examples
# make novulkan  builds (bin/lukv-static) and tests the command without Vulkan
# make purego  tests kernels, and models that use them, built without assembly
# make checks  runs only the conformance tests and prints how many checks they make
# make lint   vet, gofmt, staticcheck
# make cross  builds for the other supported systems, and vets tests where int has 32 bits
# make api    rewrites docs/api.txt, the list of exported names
# make fuzz   every fuzz target for FUZZTIME (10s)
# make mutate  plants faults one at a time: which do tests notice? (long)
# make bench  speed of this machine and of a standard set (a minute)
# make bench-peers  speed beside llama.cpp and ik_llama.cpp; see scripts/bench-peers
# make microbench  Go benchmarks of the inner packages
# make release  archives, sums, SBOM, formula and image in dist/; see scripts/release. RELEASEFLAGS=--snapshot for an untagged commit
# make results  measures again and writes docs/results.md, results.json and results/*.csv (minutes);
#              RESULTSFLAGS=-render writes page and tables from results.json

GO          ?= go
# Go's own limit, ten minutes, is too short for a package on a busy machine.
TIMEOUT     ?= 60m
TESTFLAGS   ?=
PACKAGES    ?= ./...
FUZZTIME    ?= 10s
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

export CGO_ENABLED = 0

.PHONY: all test quick modules novulkan purego checks lint cross api fuzz mutate bench bench-peers microbench results build static release

all: lint test

build:
	$(GO) build -o bin/lukv ./cmd/lukv

static:
	$(GO) build -tags novulkan -o bin/lukv-static ./cmd/lukv

test:
	@$(GO) run ./internal/testrun -timeout $(TIMEOUT) $(TESTFLAGS) $(PACKAGES)

# The base is where the branch left main; a changed testdata folder counts for its package.
quick:
	@base=$$(git merge-base main HEAD 2>/dev/null || git merge-base origin/main HEAD); \
	for dir in internal/house $$( (git diff --name-only $$base; git ls-files -o --exclude-standard) | \
		grep -E '\.(go|s|h|spv|json|md|tmpl)$$|/testdata/' | sed 's|/testdata/.*|/x|' | xargs -rn1 dirname | sort -u); do \
		$(GO) list ./$$dir 2>/dev/null || true; \
	done | sort -u | xargs $(GO) test -short -timeout 5m

modules:
	@for module in $(patsubst %/go.mod,%,$(wildcard scripts/*/go.mod examples/*/go.mod)); do \
		echo "$$module"; \
		(cd $$module && $(GO) vet ./... && $(GO) test $(TESTFLAGS) ./...) || exit 1; \
	done
	cd clients/openai-go && $(GO) vet ./...

novulkan: static
	$(GO) vet -tags novulkan ./command ./cmd/lukv
	$(GO) test -timeout $(TIMEOUT) $(TESTFLAGS) -tags novulkan ./command ./cmd/lukv

purego:
	$(GO) vet -tags purego ./...
	$(GO) test -timeout $(TIMEOUT) $(TESTFLAGS) -tags purego -short ./kernels ./internal/probe
	$(GO) test -timeout $(TIMEOUT) $(TESTFLAGS) -tags purego -run '^TestGoldenModels$$' ./model

checks:
	@$(GO) test -count=1 -v -run 'Golden|Conformance|OpTable|Contract|KeptSets|Recorded' ./kernels ./safetensors ./lukv ./model/... ./tokenizer/... ./eval | grep -E '^[a-z].*checks|^FAIL|^--- FAIL'

lint:
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not gofmt-clean:"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

SYSTEMS ?= linux/arm64 darwin/arm64 windows/amd64 linux/riscv64 linux/386 linux/arm

cross:
	for system in $(SYSTEMS); do \
		export GOOS=$${system%/*} GOARCH=$${system#*/}; \
		$(GO) build ./... && $(GO) list -export -tags novulkan -f "" ./cmd/lukv >/dev/null || exit 1; \
	done
	$(GO) build -tags purego ./...
	GOOS=linux GOARCH=386 $(GO) vet ./...

api:
	$(GO) test ./internal/house -run '^TestExportedNames$$' -args -update

# Each package with targets is built once, with what finds new paths. Now and then running out
# of time is taken for a failure.
fuzz:
	@program=$$(mktemp); trap 'rm -f "$$program"' EXIT; cache=$$($(GO) env GOCACHE)/fuzz; \
	$(GO) list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r package folder; do \
		names=$$(cat "$$folder"/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p'); \
		[ -n "$$names" ] || continue; \
		$(GO) test -c -fuzz . -o "$$program" "$$package" || exit 1; \
		for name in $$names; do \
			echo "$$package $$name"; \
			if ! out=$$(cd "$$folder" && "$$program" -test.run '^$$' -test.fuzz "^$$name\$$" -test.fuzztime $(FUZZTIME) \
				-test.fuzzminimizetime 1x -test.fuzzcachedir "$$cache/$$package" 2>&1); then \
				echo "$$out" | tail -n 40; \
				echo "$$out" | grep -q 'Failing input' && exit 1; \
				echo "$$out" | grep -q 'context deadline exceeded' || exit 1; \
			fi; \
		done || exit 1; \
	done

bench:
	$(GO) run ./cmd/lukv bench --shape 150m --pp 512 --tg 32 --depth 0,8192 --ratio 0,0.8 --reps 3

# PEERS are SHAPE=FILE.gguf or FOLDER=FILE.gguf; LUKV_BENCH_LLAMA and LUKV_BENCH_IK name the peers' llama-bench.
# With -serve 1,8,32 in PEERSFLAGS, servers are compared: LUKV_BENCH_LLAMA_SERVER names llama-server, and models are folders.
PEERS      ?=
# Results already in bin/peers.json are not measured again.
PEERSFLAGS ?= -json bin/peers.json

bench-peers: build
	cd scripts/bench-peers && $(GO) build -o ../../bin/bench-peers .
	bin/bench-peers -lukv bin/lukv $(PEERSFLAGS) $(PEERS)

microbench:
	$(GO) test -run '^$$' -bench . -benchtime 200ms ./kernels ./kvcache ./lukv ./tokenizer

# See scripts/results.
RESULTSFLAGS ?=

results:
	cd scripts/results && $(GO) run . $(RESULTSFLAGS)

RELEASEFLAGS ?=

release:
	cd scripts/release && $(GO) run . $(RELEASEFLAGS)

# Plants faults and runs the tests; see scripts/mutate. MUTATE lists folders.
MUTATE      ?= hub safetensors kvcache lukv lukv/solve tokenizer eval eval/ruler eval/runs dialog dialog/structured internal/convert internal/grammar engine serve
MUTATEFLAGS ?= -n 200 -seed 1

mutate:
	cd scripts/mutate && $(GO) run . $(MUTATEFLAGS) $(addprefix ../../,$(MUTATE))
