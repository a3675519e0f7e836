package model

import (
	"context"
	"errors"
	"fmt"

	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testctx"
	"github.com/lukv/lukv/internal/testdevice"
	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

// randomCases is the number of cases of a random test.
func randomCases(t testing.TB, n int) int {
	if v := os.Getenv("LUKV_RANDOM_CASES"); v != "" {
		var err error
		n, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	return n
}

// randomPolicy returns a policy for a context that works with any model.
func randomPolicy(rng *rand.Rand) *lukv.Policy {
	metrics := slices.DeleteFunc(metricNames(), func(name string) bool { return name == "triattention" }) // needs a profile
	allocators := []string{"uniform", "adakv", "pyramidkv", "global", "threshold", "cake"}
	return &lukv.Policy{
		Metric: lukv.MetricConfig{Name: metrics[rng.IntN(len(metrics))]}, Allocator: lukv.AllocatorConfig{Name: allocators[rng.IntN(len(allocators))]},
		Ratio: []float64{0.3, 0.5, 0.8, 0.95}[rng.IntN(4)],
	}
}

// TestRandomHistories gives sessions of random models the same random history: tokens,
// answers, truncation, forks, files, compression. One is computed in the plainest way, the
// others with other chunks and pages, with lookup, fully or partly on a device, and with
// calls that are cancelled or get no memory, and are made again. All have the same bits
// throughout.
func TestRandomHistories(t *testing.T) {
	n := 40
	if testing.Short() {
		n = 8
	}
	faults := map[string]int{}
	for seed := range uint64(randomCases(t, n)) {
		h := newHistory(t, seed)
		if h == nil {
			continue
		}
		for range 3 + h.rng.IntN(9) {
			if h.step(); h.over {
				break
			}
		}
		h.end()
		for k, v := range h.faults {
			faults[k] += v
		}
	}
	t.Logf("%d cases, calls that failed: %v", randomCases(t, n), faults)
	require.Greater(t, len(faults), 1)
}

// history is one case.
type history struct {
	t       *testing.T
	rng     *rand.Rand
	cfg     *Config
	decodes bool // compresses while decoding
	teller  string
	over    bool // the session cannot go on
	faults  map[string]int
	models  []*Model
	options []SessionOptions
	s       []*Session
	devices []*testdevice.Device
}

// newHistory makes three models with the same weights and a session of each, nil if the
// policy that it chose is invalid.
func newHistory(t *testing.T, seed uint64) *history {
	rng := rand.New(rand.NewPCG(seed, 7))
	heads, group := 1+rng.IntN(3), 1+rng.IntN(4)
	cfg := &Config{
		Arch: []string{"llama", "mistral", "qwen2", "qwen3"}[rng.IntN(4)], Layers: 1 + rng.IntN(4), Hidden: 16 * (1 + rng.IntN(8)),
		Intermediate: 16 * (1 + rng.IntN(12)), Heads: heads * group, KVHeads: heads, HeadDim: []int{8, 16, 32, 64}[rng.IntN(4)],
		Vocab: 50 + rng.IntN(200), MaxPositions: 4096, NormEps: 1e-5, Rope: arch.RopeConfig{Theta: 10000},
		QKVBias: rng.IntN(2) == 0, QKNorm: rng.IntN(3) == 0, TiedEmbeddings: rng.IntN(2) == 0, BOS: []int{1}, EOS: []int{2},
	}
	cfg.Windows = make([]int, cfg.Layers)
	if rng.IntN(3) == 0 {
		for i := range cfg.Windows {
			cfg.Windows[i] = rng.IntN(2) * (5 + rng.IntN(200))
		}
	}
	weights, err := weights.Random(context.Background(), cfg, []tensor.Type{tensor.F32, tensor.F16, tensor.BF16}[rng.IntN(3)], seed)
	require.NoError(t, err)
	h := &history{t: t, rng: rng, cfg: cfg, faults: map[string]int{}}
	var policy *lukv.Policy
	if rng.IntN(3) > 0 {
		policy = randomPolicy(rng)
	}
	if rng.IntN(5) == 0 {
		h.decodes = true
		policy = decodePolicies()[rng.IntN(len(decodePolicies()))]
	}
	o := SessionOptions{Compression: policy, CacheType: []tensor.Type{0, tensor.F32, tensor.F16, tensor.BF16, tensor.I8}[rng.IntN(5)]}
	precision := []Precision{PrecisionF32, PrecisionBF16}[rng.IntN(2)]
	h.teller = fmt.Sprintf("seed %d, %+v, %v", seed, *cfg, policy)
	for k := range 3 {
		options := []Option{WithThreads(1 + k%2), WithPrecision(precision)}
		var d *testdevice.Device
		if k > 0 {
			o.ChunkTokens, o.PageEntries, o.Lookup = 1+rng.IntN([]int{40, 600}[rng.IntN(2)]), 16<<rng.IntN(4), rng.IntN(2) == 0
			if k == 2 || rng.IntN(2) == 0 {
				d = newFakeDevice()
				options = append(options, WithOpenDevice(d), WithDeviceLayers(1+rng.IntN(cfg.Layers)))
			}
		}
		own := *cfg
		m, err := New(&own, weights, options...)
		require.NoError(t, err)
		h.models, h.options, h.devices = append(h.models, m), append(h.options, o), append(h.devices, d)
		s, err := m.NewSession(o)
		if err != nil { // such as a metric that does not go with the allocator
			h.end()
			return nil
		}
		h.s = append(h.s, s)
	}
	return h
}

func (h *history) end() {
	for _, s := range h.s {
		require.NoError(h.t, s.Close())
	}
	for i, m := range h.models {
		require.NoError(h.t, m.Close())
		if d := h.devices[i]; d != nil {
			d.WantEmpty(h.t)
		}
	}
}

func (h *history) tokens(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(h.rng.IntN(h.cfg.Vocab))
	}
	return out
}

// step does one thing to all sessions and compares them.
func (h *history) step() {
	name, do := h.choose()
	h.teller += "; " + name
	errs := make([]error, len(h.s))
	for i := range h.s {
		errs[i] = do(i)
		h.over = h.over || h.s[i].Cache().Err() != nil || errors.Is(errs[i], errHalfDone)
	}
	want := h.s[0]
	for i, s := range h.s {
		if h.over {
			return
		}
		what := fmt.Sprintf("%s: session %d: %v, alone %v", h.teller, i, errs[i], errs[0])
		if h.cfg.Windows != nil && (errs[i] == nil) != (errs[0] == nil) && slices.Max(h.cfg.Windows) > 0 {
			h.over = true // how far windows can go back depends on the chunks
			return
		}
		require.Equal(h.t, errs[0] == nil, errs[i] == nil, what)
		require.Equal(h.t, want.Tokens(), s.Tokens(), what)
		testnum.SameBits(h.t, what, want.Logits(), s.Logits())
		if s.comp == nil || len(s.comp.kept) == 0 { // nothing is left to cut
			require.Equal(h.t, h.lens(want), h.lens(s), what)
		}
	}
}

// lens returns the numbers of entries of the heads without a window.
func (h *history) lens(s *Session) []int {
	var out []int
	for at := range h.cfg.Layers {
		for head := range h.cfg.KVHeads {
			if h.cfg.Windows[at] == 0 {
				out = append(out, s.Cache().Len(at, head))
			}
		}
	}
	return out
}

// choose returns the name of the next thing to do, and a function that does it to
// session i.
func (h *history) choose() (string, func(i int) error) {
	ctx, rng := context.Background(), h.rng
	length := h.s[0].Len()
	kind := rng.IntN(10)
	if length == 0 {
		kind = 0
	}
	switch kind {
	default:
		ids := h.tokens(1 + rng.IntN([]int{12, 300}[rng.IntN(2)]))
		return fmt.Sprintf("prefill %d", len(ids)), func(i int) error { return h.prefill(i, ids) }
	case 1, 2:
		ids := h.tokens(1 + rng.IntN(20))
		return fmt.Sprintf("append %d", len(ids)), func(i int) error {
			for _, id := range ids {
				if err := h.again(i, "append", func(ctx context.Context) error { return h.s[i].Append(ctx, id) }); err != nil {
					return err
				}
			}
			return nil
		}
	case 3:
		n := []int{rng.IntN(length + 1), max(0, length-1-rng.IntN(5))}[rng.IntN(2)]
		return fmt.Sprintf("truncate %d", n), func(i int) error { return h.s[i].Truncate(n) }
	case 4:
		return "fork", func(i int) error {
			f, err := h.s[i].Fork()
			if err != nil {
				return err
			}
			old := h.s[i]
			h.s[i] = f
			if rng.IntN(2) == 0 { // which does not affect the fork
				if err := old.Append(ctx, 3); err != nil {
					return err
				}
			}
			return old.Close()
		}
	case 5:
		return "save", func(i int) error {
			path := filepath.Join(h.t.TempDir(), "session")
			if err := h.s[i].Save(ctx, path); err != nil {
				return err
			}
			s, err := h.models[i].LoadSession(ctx, path, SessionOptions{ChunkTokens: h.options[i].ChunkTokens, Lookup: h.options[i].Lookup})
			if err != nil {
				return err
			}
			old := h.s[i]
			h.s[i] = s
			return old.Close()
		}
	case 6:
		from := rng.IntN(length)
		span, p := Span{from, from + 1 + rng.IntN(length-from)}, randomPolicy(rng)
		return fmt.Sprintf("compress %v %v", span, p), func(i int) error {
			return h.again(i, "compress", func(ctx context.Context) error {
				err := h.s[i].Compress(ctx, span, p)
				if errors.Is(err, kernels.ErrDeviceMemory) { // heads may be cut
					err = fmt.Errorf("%w: %w", errHalfDone, err)
				}
				return err
			})
		}
	case 7:
		ids, p := h.tokens(1+rng.IntN(300)), randomPolicy(rng)
		return fmt.Sprintf("compressed prefill %d %v", len(ids), p), func(i int) error {
			if slices.Min(h.cfg.Windows) > 0 { // nothing is compressed, and the prefill goes by chunks
				return h.s[i].PrefillCompressed(ctx, ids, p)
			}
			return h.again(i, "compressed", func(ctx context.Context) error { return h.s[i].PrefillCompressed(ctx, ids, p) })
		}
	case 8:
		o := Sampling{MaxTokens: 5 + rng.IntN(40), Temperature: float64(rng.IntN(2)), Seed: rng.Uint64(), IgnoreEOS: true}
		return fmt.Sprintf("generate %d", o.MaxTokens), func(i int) error {
			for _, err := range h.s[i].Generate(ctx, o) {
				if err != nil {
					return err
				}
			}
			return h.s[i].Prefill(ctx, []int32{7})
		}
	}
}

// errHalfDone is a compression that ran out of memory for survivors half way.
var errHalfDone = errors.New("half done")

// prefill feeds tokens from where calls that failed left the session.
func (h *history) prefill(i int, ids []int32) error {
	s := h.s[i]
	if h.decodes { // in which case the second half of a first prefill is a decoding pass
		return s.Prefill(context.Background(), ids)
	}
	end := s.Len() + len(ids)
	for try := range 5 {
		ctx, off := h.fault(i, try)
		err := s.Prefill(ctx, ids[len(ids)-(end-s.Len()):])
		off()
		if !h.failed(i, "prefill", err) {
			return err
		}
	}
	panic("the last try has no fault")
}

// again makes a call that changes nothing when it fails.
func (h *history) again(i int, name string, call func(context.Context) error) error {
	for try := range 5 {
		s := h.s[i]
		length, logits, cut := s.Len(), slices.Clone(s.Logits()), s.comp != nil && len(s.comp.kept) > 0
		lens := h.lens(s)
		ctx, off := h.fault(i, try)
		err := call(ctx)
		off()
		if !h.failed(i, name, err) {
			return err
		}
		what := fmt.Sprintf("%s: session %d after %v", h.teller, i, err)
		require.Equal(h.t, length, s.Len(), what)
		testnum.SameBits(h.t, what, logits, s.Logits())
		if !cut {
			require.Equal(h.t, lens, h.lens(s), what)
		}
	}
	panic("the last try has no fault")
}

// failed reports whether a call failed because of a fault of ours and can be made again.
func (h *history) failed(i int, name string, err error) bool {
	fault := errors.Is(err, context.Canceled) || errors.Is(err, kernels.ErrDeviceMemory)
	if fault {
		h.faults[name]++
		require.NoError(h.t, h.s[i].Cache().Check())
	}
	return fault && h.s[i].Cache().Err() == nil && !errors.Is(err, errHalfDone)
}

// fault makes something go wrong in the next call of a session, or nothing: always
// nothing in the last try and in the first session.
func (h *history) fault(i, try int) (ctx context.Context, off func()) {
	d := h.devices[i]
	switch kind := h.rng.IntN(3); {
	case i == 0 || try == 4:
	case kind == 0:
		return testctx.DoneAfter(context.Background(), h.rng.IntN(40)), func() {}
	case kind == 1 && d != nil:
		d.FailAt(1+h.rng.IntN(200), kernels.ErrDeviceMemory)
		return context.Background(), func() { d.FailAt(0, nil) }
	}
	return context.Background(), func() {}
}
