//go:build linux

package model

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

var (
	methodTokens = flag.Int("methods.tokens", 2048, "BenchmarkMethods: tokens of the prefill")
	methodLayers = flag.Int("methods.layers", 1, "BenchmarkMethods: layers of the shape's 12")
)

// BenchmarkMethods prefills the shape of 150 million parameters with every metric
// at a ratio of 0.8, uniform, on one thread, and reports the processor time relative
// to a prefill without compression (x-full) and how much more memory the process took
// at its peak (extra-MiB). Layers are alike: one tells as much as twelve.
//
//	go test ./model -run '^$' -bench Methods -benchtime 1x -methods.tokens 16384
func BenchmarkMethods(b *testing.B) {
	cfg, err := arch.ShapeConfig("150m")
	if err != nil {
		b.Fatal(err)
	}
	cfg.Layers, cfg.Windows = *methodLayers, make([]int, *methodLayers)
	m, err := New(cfg, randomWeights(b, cfg, tensor.BF16, 7), WithThreads(1))
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	m.tokOnce.Do(func() { m.tok, m.tokErr = tokenizer.Load(os.DirFS("builtin")) }) // kvzip encodes instructions
	tokens := make([]int32, *methodTokens)
	for i := range tokens {
		tokens[i] = int32(i * 7919 % cfg.Vocab)
	}
	measurePrefill(b, m, tokens[:min(512, len(tokens))], nil) // makes what is made only once
	full := measurePrefill(b, m, tokens, nil)
	b.Logf("full: %.2f s of processor time, %d tokens, %d layers", full.seconds, len(tokens), cfg.Layers)
	for _, name := range lukv.Metrics() {
		if name == hiddenName {
			continue
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				got := measurePrefill(b, m, tokens, &lukv.Policy{Metric: lukv.MetricConfig{Name: name}, Ratio: 0.8})
				b.ReportMetric(got.seconds/full.seconds, "x-full")
				b.ReportMetric(float64(max(0, got.peak-full.peak))/(1<<20), "extra-MiB")
			}
		})
	}
}

type prefillCost struct {
	seconds float64 // of processor time
	peak    int64   // bytes by which the process grew at most
}

func measurePrefill(b *testing.B, m *Model, tokens []int32, p *lukv.Policy) prefillCost {
	b.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	s, err := m.NewSession(SessionOptions{Compression: p})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // peak := now
		b.Log(err)
	}
	before, start := residentPeak(b), processorTime(b)
	if err := s.Prefill(context.Background(), tokens); err != nil {
		b.Fatal(err)
	}
	return prefillCost{(processorTime(b) - start).Seconds(), residentPeak(b) - before}
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

var peakLine = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

func residentPeak(b *testing.B) int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	m := peakLine.FindSubmatch(data)
	if m == nil {
		b.Fatal(fmt.Errorf("no VmHWM in /proc/self/status"))
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n << 10
}
