# make test   all tests; needs Go alone (parts that need more skip and say so)
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

.PHONY: all test checks lint cross bench microbench results build

all: lint test

build:
	$(GO) build -o bin/lukv ./cmd/lukv

test:
	$(GO) test $(TESTFLAGS) ./...

checks:
	@$(GO) test -count=1 -v -run 'Golden|Conformance|OpTable' ./kernels ./safetensors ./lukv ./model/... ./tokenizer/... ./eval | grep -E '^[a-z].*checks|^FAIL|^--- FAIL'

lint:
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not gofmt-clean:"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

cross:
	GOOS=linux GOARCH=arm64 $(GO) build ./...
	GOOS=darwin GOARCH=arm64 $(GO) build ./...
	GOOS=windows GOARCH=amd64 $(GO) build ./...
	$(GO) build -tags purego ./...

bench:
	$(GO) run ./cmd/lukv bench --shape 150m --pp 512 --tg 32 --depth 0,8192 --ratio 0,0.8 --reps 3

microbench:
	$(GO) test -run '^$$' -bench . -benchtime 200ms ./kernels ./kvcache ./lukv ./tokenizer

results:
	$(GO) run ./cmd/lukv results -o docs/results.md
