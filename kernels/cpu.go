package kernels

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
)

// CPU is the set of instruction-set extensions that operations may use. The
// zero CPU is portable Go. Fields can be cleared freely to force a narrower
// set; setting one that the processor lacks makes operations fault. A program
// built with -tags purego has no assembly: it offers portable Go only.
type CPU struct {
	AVX2       bool // with FMA and F16C
	AVX512     bool // F, BW, DQ, VL
	AVX512BF16 bool
	NEON       bool

	// Streaming is how kernels that wait for memory ask for it. No result depends on it.
	Streaming Streaming

	// SlowDot says that dot products of bf16 have half the rate of multiply-adds of f32,
	// as on Intel's cores: products of many rows do without them. No result depends on it.
	SlowDot bool
}

// Streaming is an order and a look-ahead in which weights and cache pages are read
// where a pass has few rows. Which is the fastest depends on the caches; NEON and
// portable Go know only one.
type Streaming uint8

const (
	// streamNear fetches what comes next into the first-level cache. A single row of
	// activations on AVX2 and six on AVX-512 take runs of rows of weights as with
	// streamRuns, on AVX2 asked for twice as far ahead.
	streamNear Streaming = iota

	// streamFar fetches it into the second-level cache.
	streamFar

	// streamRows is streamFar, but a single row of activations takes rows of weights of
	// up to 2048 elements one after another instead of four at a time, and leaves the
	// look-ahead to the processor (AVX-512).
	streamRows

	// streamRuns is streamFar, but up to six rows of activations (a single one on AVX2)
	// take four runs of neighbouring rows of weights side by side.
	streamRuns
)

var streamingNames = [...]string{"near", "far", "rows", "runs"}

func (s Streaming) String() string { return streamingNames[s] }

// stream returns the fields far and serial of tiles with so many rows of x, whose
// elements have size bytes, and columns.
func (c CPU) stream(n, size, cols int) (far, serial int) {
	switch {
	case c.Streaming == streamNear && (n == 1 && c.AVX2 && !c.AVX512 || n == 6 && c.AVX512):
		return 2 * runAhead, 2
	case c.Streaming == streamNear:
	case c.Streaming == streamRows && cols <= blockK:
		return 1, 1
	case c.Streaming == streamRuns && (n == 1 && c.AVX2 || n <= 6 && c.AVX512):
		return runAhead, 2
	case c.Streaming == streamFar && c.AVX512BF16 && size == 2 && n == 1 && cols >= blockK:
		// The processor's own look-ahead keeps up with long runs.
	default:
		return 1, 0
	}
	return 0, 0
}

// detectStreaming chooses as measured on Intel's Sapphire and Emerald Rapids and on
// AMD's Zen 4 (32 KiB of first-level data cache, which a block of keys fills) and Zen 5
// (48 KiB), unless the variable LUKV_STREAMING names a choice. l1 is in bytes, 0 if unknown.
func detectStreaming(intel bool, l1 int, name string) (Streaming, error) {
	choice := streamNear
	switch {
	case intel:
		choice = streamRuns
	case l1 > 0 && l1 <= 32<<10:
		choice = streamRows
	}
	if name == "" {
		return choice, nil
	}
	if i := slices.Index(streamingNames[:], name); i >= 0 {
		return Streaming(i), nil
	}
	return choice, fmt.Errorf("streaming %q: want %s", name, strings.Join(streamingNames[:], ", "))
}

// Detect returns what this processor offers, narrowed by the environment
// variable LUKV_CPU if it is set to a name that [ParseCPU] knows. Any other
// value is reported once, as a warning of [slog.Default], and ignored.
func Detect() CPU { return detectOnce() }

var detectOnce = sync.OnceValue(func() CPU {
	c, err := detectNamed(os.Getenv("LUKV_CPU"))
	if err != nil {
		slog.Warn("LUKV_CPU is ignored", "err", err, "using", c)
	}
	return c
})

func detectNamed(name string) (CPU, error) {
	if name == "" {
		name = "auto"
	}
	c, err := ParseCPU(name)
	if err != nil {
		return detect(), err
	}
	return c, nil
}

// ParseCPU returns the instruction set with the given name: "portable", "avx2",
// "avx512", "avx512bf16", "neon" or "auto". A name beyond what the processor
// offers is an error.
func ParseCPU(name string) (CPU, error) {
	have := detect()
	var c CPU
	switch strings.ToLower(name) {
	case "auto":
		return have, nil
	case "portable":
		return CPU{}, nil
	case "avx2":
		c = CPU{AVX2: true}
	case "avx512":
		c = CPU{AVX2: true, AVX512: true}
	case "avx512bf16":
		c = CPU{AVX2: true, AVX512: true, AVX512BF16: true, SlowDot: have.SlowDot}
	case "neon":
		c = CPU{NEON: true}
	default:
		return CPU{}, fmt.Errorf("instruction set %q: want auto, portable, avx2, avx512, avx512bf16 or neon", name)
	}
	if c.AVX2 {
		c.Streaming = have.Streaming
	}
	if c.AVX2 && !have.AVX2 || c.AVX512 && !have.AVX512 || c.AVX512BF16 && !have.AVX512BF16 || c.NEON && !have.NEON {
		return CPU{}, fmt.Errorf("instruction set %q: this processor offers %s", name, have)
	}
	return c, nil
}

// Variants returns every distinct instruction set that this processor offers, portable first.
func Variants() []CPU {
	var out []CPU
	for _, name := range []string{"portable", "avx2", "avx512", "avx512bf16", "neon"} {
		if c, err := ParseCPU(name); err == nil {
			out = append(out, c)
		}
	}
	return out
}

// String returns the name of the widest set, as ParseCPU reads it.
func (c CPU) String() string {
	switch {
	case c.AVX512BF16:
		return "avx512bf16"
	case c.AVX512:
		return "avx512"
	case c.AVX2:
		return "avx2"
	case c.NEON:
		return "neon"
	}
	return "portable"
}
