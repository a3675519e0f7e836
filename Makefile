# make test   all tests; needs Go alone (parts that need more skip and say so)
# make novulkan  builds (bin/lukv-static) and tests the command without Vulkan
# make checks prints how many checks the conformance tests make
# make lint   vet, gofmt, staticcheck
# make cross  builds for the other supported systems
# make bench  speed of this machine and of a standard set (a minute)
# make microbench  Go benchmarks of the inner packages
# make results  regenerates docs/results.md (minutes)

GO          ?= go
TESTFLAGS   ?=
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

export CGO_ENABLED = 0

.PHONY: all test novulkan checks lint cross bench microbench results build static

all: lint test

build:
	$(GO) build -o bin/lukv ./cmd/lukv

static:
	$(GO) build -tags novulkan -o bin/lukv-static ./cmd/lukv

test:
	$(GO) test $(TESTFLAGS) ./...

novulkan: static
	$(GO) vet -tags novulkan ./cmd/lukv
	$(GO) test $(TESTFLAGS) -tags novulkan ./cmd/lukv

checks:
	@$(GO) test -count=1 -v -run 'Golden|Conformance|OpTable|Contract|KeptSets|Recorded' ./kernels ./safetensors ./lukv ./model/... ./tokenizer/... ./eval | grep -E '^[a-z].*checks|^FAIL|^--- FAIL'

lint:
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not gofmt-clean:"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

cross:
	for system in linux/arm64 darwin/arm64 windows/amd64 linux/riscv64; do \
		export GOOS=$${system%/*} GOARCH=$${system#*/}; \
		$(GO) build ./... && $(GO) build -tags novulkan -o /dev/null ./cmd/lukv || exit 1; \
	done
	$(GO) build -tags purego ./...

bench:
	$(GO) run ./cmd/lukv bench --shape 150m --pp 512 --tg 32 --depth 0,8192 --ratio 0,0.8 --reps 3

microbench:
	$(GO) test -run '^$$' -bench . -benchtime 200ms ./kernels ./kvcache ./lukv ./tokenizer

results:
	$(GO) run ./cmd/lukv results -o docs/results.md
