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
	AVX512VNNI bool
	AVX512BF16 bool
	NEON       bool
	DotProd    bool // NEON's dot products of bytes

	// Streaming is how memory-bound kernels prefetch. No result depends on it.
	Streaming Streaming

	// SlowDot says that bf16 dot products run at half the rate of f32 multiply-adds, as on
	// Intel's cores: products of many rows then avoid them. No result depends on it.
	SlowDot bool
}

// Streaming is the order and look-ahead with which weights and cache pages are read
// when a pass has few rows. Which is fastest depends on the caches; NEON and
// portable Go have only one.
type Streaming uint8

const (
	// streamNear prefetches into the first-level cache. A single row of activations on
	// AVX2, and six on AVX-512, read the weights as four runs of neighbouring rows side
	// by side.
	streamNear Streaming = iota

	// streamFar prefetches into the second-level cache. Up to six rows of activations (a
	// single one on AVX2) read the weights as runs, in a way that keeps the activations in the
	// first-level cache. Attention of few rows in bf16 reads 16 columns at a time, at an even
	// pace that memory can sustain.
	streamFar

	// streamRuns is streamFar with a shorter look-ahead, line by line, and with attention that
	// reads 64 columns at a time and prefetches from four pages of memory side by side.
	streamRuns
)

var streamingNames = [...]string{"near", "far", "runs"}

func (s Streaming) String() string { return streamingNames[s] }

// stream returns how tiles of n rows of x, whose elements have size bytes, read rows of w:
// whether as runs, and the value of the tile's far field.
func (c CPU) stream(n, size int) (far int, runs bool) {
	near := c.Streaming == streamNear
	switch {
	case c.AVX512:
		runs = n == 6 || n < 6 && !near
	case c.AVX2:
		runs = n == 1
	}
	switch {
	case runs:
		return c.runAhead(n, size), true
	case near:
		return 0, false
	}
	return 1, false
}

// runAhead returns how many bytes ahead of use a run is prefetched into the second-level cache
// by tiles of n rows of x, whose elements have size bytes, as measurements favour: less than a
// page, and more where a tile computes longer, or so little that memory should have more requests.
func (c CPU) runAhead(n, size int) int {
	far := c.Streaming == streamFar
	switch {
	case far && n == 1 && size == 2 && c.AVX512BF16 && c.AVX512:
		return 3072
	case far && n == 1:
		return 1536
	case far && n > 2, c.Streaming == streamNear && !c.AVX512:
		return 2048
	}
	return 1024
}

// detectStreaming returns the choice that measurements favour on Intel's Sapphire and
// Emerald Rapids and on AMD's Zen 4 (32 KiB of first-level data cache, which a block of keys
// fills) and Zen 5 (48 KiB), unless name, the value of LUKV_STREAMING, names another. l1 is
// in bytes, 0 if unknown.
func detectStreaming(intel bool, l1 int, name string) (Streaming, error) {
	choice := streamNear
	switch {
	case intel:
		choice = streamRuns
	case l1 > 0 && l1 <= 32<<10:
		choice = streamFar
	}
	if name == "" {
		return choice, nil
	}
	if i := slices.Index(streamingNames[:], name); i >= 0 {
		return Streaming(i), nil
	}
	return choice, fmt.Errorf("streaming %q: expected %s", name, strings.Join(streamingNames[:], ", "))
}

// Detect returns what this processor offers, narrowed by the environment
// variable LUKV_CPU if it is set to a name that [ParseCPU] knows. Any other
// value is ignored and reported once, as a warning to [slog.Default].
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
// "avx512", "avx512vnni", "avx512bf16" (with VNNI), "neon", "dotprod" (NEON with it) or "auto". Naming more than the processor
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
	case "avx512vnni":
		c = CPU{AVX2: true, AVX512: true, AVX512VNNI: true}
	case "avx512bf16":
		c = CPU{AVX2: true, AVX512: true, AVX512VNNI: have.AVX512VNNI, AVX512BF16: true, SlowDot: have.SlowDot}
	case "neon":
		c = CPU{NEON: true}
	case "dotprod":
		c = CPU{NEON: true, DotProd: true}
	default:
		return CPU{}, fmt.Errorf("instruction set %q: expected auto, portable, avx2, avx512, avx512vnni, avx512bf16, neon or dotprod", name)
	}
	if c.AVX2 {
		c.Streaming = have.Streaming
	}
	if c.AVX2 && !have.AVX2 || c.AVX512 && !have.AVX512 || c.AVX512VNNI && !have.AVX512VNNI || c.AVX512BF16 && !have.AVX512BF16 || c.NEON && !have.NEON || c.DotProd && !have.DotProd {
		return CPU{}, fmt.Errorf("instruction set %q: this processor offers %s", name, have)
	}
	return c, nil
}

// Variants returns every distinct instruction set that this processor offers, portable first.
func Variants() []CPU {
	var out []CPU
	for _, name := range []string{"portable", "avx2", "avx512", "avx512vnni", "avx512bf16", "neon", "dotprod"} {
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
	case c.AVX512VNNI:
		return "avx512vnni"
	case c.AVX512:
		return "avx512"
	case c.AVX2:
		return "avx2"
	case c.DotProd:
		return "dotprod"
	case c.NEON:
		return "neon"
	}
	return "portable"
}
