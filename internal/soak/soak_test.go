package soak

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer/chat"
)

var (
	duration   = flag.Duration("soak", 0, "how long to go on; 0: every scenario once or so")
	goroutines = flag.Int("goroutines", 6, "sessions at a time")
	seed       = flag.Uint64("seed", 0, "start of the random choices; 0: the clock")
)

const steps = 12 // tokens after the prompt

// A scenario is a prompt under a policy, and the results of a session on its own.
type scenario struct {
	name    string
	options model.SessionOptions
	prompt  []int32
	tokens  []int32  // generated greedily
	logits  []uint64 // hash of the logits after the prompt and after each token
}

func bits(logits []float32) uint64 {
	h := fnv.New64a()
	var b [4]byte
	for _, v := range logits {
		binary.LittleEndian.PutUint32(b[:], math.Float32bits(v))
		h.Write(b[:])
	}
	return h.Sum64()
}

// scenarios computes the references, one session after another.
func scenarios(t *testing.T, m *model.Model) []*scenario {
	profile, err := builtin.Profile(lukv.MetricConfig{Name: "keydiff"})
	require.NoError(t, err)
	policy := func(metric, allocator string, ratio float64) *lukv.Policy {
		p := &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: ratio}
		if allocator == "lukv" {
			p.Profile = profile
		}
		return p
	}
	periodic := policy("snapkv", "uniform", 0.5)
	periodic.Decode = lukv.DecodeConfig{Mode: "periodic", TargetSize: 60, Interval: 5}
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	samples := builtin.Samples()
	var all []*scenario
	for i, p := range []*lukv.Policy{
		nil, policy("snapkv", "uniform", 0.8), policy("keydiff", "lukv", 0.9), policy("expected_attention", "adakv", 0.5),
		policy("h2o", "global", 0.7), periodic,
	} {
		head, tail := builtin.Prompt(samples[i].Context, samples[i].Question, samples[i].AnswerPrefix)
		ids := chat.Join(head, tail).Encode(tok)
		s := &scenario{name: "full", options: model.SessionOptions{Compression: p}, prompt: ids[:min(len(ids), 250+40*i)]}
		if p != nil {
			s.name = fmt.Sprint(p.Metric.Name, "/", p.Allocator.Name, "/", p.Decode.Mode)
		}
		session, err := m.NewSession(s.options)
		require.NoError(t, err)
		require.NoError(t, session.Prefill(t.Context(), s.prompt))
		s.logits = append(s.logits, bits(session.Logits()))
		for range steps {
			next := argmax(session.Logits())
			require.NoError(t, session.Append(t.Context(), next))
			s.tokens = append(s.tokens, next)
			s.logits = append(s.logits, bits(session.Logits()))
		}
		require.NoError(t, session.Close())
		all = append(all, s)
	}
	return all
}

func argmax(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// TestSoak runs random lives of sessions until time is up.
func TestSoak(t *testing.T) {
	start := *seed
	if start == 0 {
		start = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", start)
	before := runtime.NumGoroutine()
	m, err := builtin.Open(t.Context(), model.WithThreads(2))
	require.NoError(t, err)
	all := scenarios(t, m)

	deadline := time.Now().Add(*duration)
	var lives, failures atomic.Int64
	var wg sync.WaitGroup
	dir := t.TempDir()
	for g := range *goroutines {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(start, uint64(g)))
			for n := 0; (n < 2 || time.Now().Before(deadline)) && failures.Load() == 0; n++ {
				s := all[(g+n)%len(all)]
				l := &life{scenario: s, m: m, rng: rng, file: filepath.Join(dir, fmt.Sprint(g))}
				if err := l.run(t.Context()); err != nil {
					failures.Add(1)
					t.Errorf("goroutine %d, life %d, %s after %v: %v", g, n, s.name, l.did, err)
				}
				lives.Add(1)
			}
		})
	}
	wg.Wait()

	// The model is closed while sessions are at work: they end with ErrClosed.
	for g := range *goroutines {
		wg.Go(func() {
			l := &life{scenario: all[g%len(all)], m: m, rng: rand.New(rand.NewPCG(start, uint64(g))), file: filepath.Join(dir, fmt.Sprint(g))}
			if err := l.run(t.Context()); err != nil && !errors.Is(err, model.ErrClosed) {
				t.Errorf("while the model closes, %s after %v: %v", l.name, l.did, err)
			}
		})
	}
	runtime.Gosched()
	require.NoError(t, m.Close())
	wg.Wait()
	for wait := 0; runtime.NumGoroutine() > before && wait < 1000; wait++ {
		time.Sleep(time.Millisecond) // workers end in their own time
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before, "goroutines that are left")
	t.Logf("%d lives", lives.Load())
}
