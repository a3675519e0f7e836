package model

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// decodeMethods returns every way of compressing while decoding: the streaming forms,
// and periodic with every metric that can be used for it.
func decodeMethods(t testing.TB) (all []lukv.DecodeConfig) {
	all = []lukv.DecodeConfig{
		{Mode: "h2o", TargetSize: 28},
		{Mode: "h2o", TargetSize: 28, Decay: 0.5},
		{Mode: "tova", TargetSize: 30},
		{Mode: "streaming", TargetSize: 30},
		{Mode: "periodic", Ratio: 0.5, Interval: 4, Metric: &lukv.MetricConfig{Name: "knorm"}},
		{Mode: "periodic", TargetSize: 30, Interval: 5, Buffer: -1, Metric: &lukv.MetricConfig{Name: "expected_attention"}},
	}
	for _, name := range lukv.Metrics() {
		c := lukv.DecodeConfig{Mode: "periodic", TargetSize: 30, Interval: 6, Buffer: 9, Metric: &lukv.MetricConfig{Name: name}}
		if _, err := lukv.NewDecoding(c, nil); err == nil {
			all = append(all, c)
		}
	}
	require.Greater(t, len(all), 12)
	return all
}

func save(t testing.TB, s *Session, label string) []byte {
	var file bytes.Buffer
	require.NoError(t, s.SaveTo(t.Context(), &file, label))
	size, err := s.SavedSize(label)
	require.NoError(t, err)
	require.EqualValues(t, file.Len(), size)
	return file.Bytes()
}

func load(t testing.TB, m *Model, file []byte, o SessionOptions) *Session {
	s, err := m.LoadSessionFrom(t.Context(), "file", bytes.NewReader(file), int64(len(file)), o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// TestSavedSessionsGoOnToTheSameBits saves a session at a random step, with every form
// of compression while decoding, and goes on with what is loaded: every logit and every
// kept position is that of a session that was never saved.
func TestSavedSessionsGoOnToTheSameBits(t *testing.T) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(3, 5))
	m := testShapes[0].open(t, WithThreads(2))
	windows := testShapes[slices.IndexFunc(testShapes, func(s testShape) bool { return s.window > 0 })].open(t, WithThreads(2))
	for i, d := range decodeMethods(t) {
		m := m
		if i%3 == 2 {
			m = windows
		}
		s := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Decode: d}})
		require.NoError(t, s.Prefill(ctx, randomTokens(20+rng.IntN(30), 97, uint64(i))))
		at, cuts := rng.IntN(17), 0
		for step := range 24 {
			if step == at {
				file := save(t, s, "a label")
				again := load(t, m, file, SessionOptions{})
				require.Equal(t, s.Policy(), again.Policy())
				require.Equal(t, file, save(t, again, "a label"), "%v: what is loaded is what was saved", d)
				defer func(one *Session) { require.NoError(t, one.Close()) }(s)
				goOn(t, fmt.Sprint(d, " saved at step ", at), rng, s, again)
				cuts = again.Stats().Cuts
				break
			}
			require.NoError(t, s.Append(ctx, int32(step)))
		}
		require.Positive(t, cuts, "%v: it was cut after it was loaded", d)
	}
}

// goOn feeds the same tokens to two sessions and compares them after each pass.
func goOn(t *testing.T, what string, rng *rand.Rand, want, got *Session) {
	ctx := context.Background()
	for step := range 14 {
		tokens := randomTokens(1, 97, uint64(step))
		if step == 9 {
			tokens = randomTokens(2+rng.IntN(9), 97, 7)
		}
		for _, s := range []*Session{want, got} {
			require.NoError(t, s.Prefill(ctx, tokens))
		}
		testnum.SameBits(t, fmt.Sprint(what, ", ", step, " later"), want.Logits(), got.Logits())
		for l := range want.m.cfg.Layers {
			for h := range want.m.cfg.KVHeads {
				require.Equal(t, want.cache.Positions(l, h, nil), got.cache.Positions(l, h, nil), what)
			}
		}
	}
}

// TestSessionInfo: what a session says about itself is read without its cache.
func TestSessionInfo(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	s := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "knorm"}, Ratio: 0.5}})
	require.NoError(t, s.Prefill(ctx, randomTokens(90, 97, 1)))
	file := save(t, s, "a label")
	header := 8 + int(file[0]) | int(file[1])<<8 | int(file[2])<<16
	clear(file[header+64:]) // nothing of the cache is looked at
	info, err := ReadSessionInfo("file", bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	require.Equal(t, &SessionInfo{
		Label: "a label", Model: m.ID(), Precision: m.Precision(), Tokens: s.Tokens(), Position: 90, ContextTokens: 90, Policy: s.Policy(),
	}, info)
	_, err = m.LoadSessionFrom(t.Context(), "file", bytes.NewReader(file), int64(len(file)), SessionOptions{})
	require.ErrorContains(t, err, "file", "loading it does look")

	var cache bytes.Buffer
	require.NoError(t, s.cache.Save(t.Context(), &cache, nil))
	_, err = ReadSessionInfo("file", bytes.NewReader(cache.Bytes()), int64(cache.Len()))
	require.ErrorContains(t, err, "no session")
}

// resaved writes a session's file with other metadata and tensors beside the cache.
func resaved(t testing.TB, s *Session, change func(state *savedSession, extra map[string]tensor.Tensor)) []byte {
	meta, err := s.savedMeta("")
	require.NoError(t, err)
	var state savedSession
	require.NoError(t, json.Unmarshal([]byte(meta[metaSession]), &state))
	extra := map[string]tensor.Tensor{}
	for _, x := range s.decodeTensors() {
		extra[x.Name] = x.Tensor
	}
	change(&state, extra)
	text, err := json.Marshal(state)
	require.NoError(t, err)
	meta[metaSession] = string(text)
	var list []safetensors.Named
	for name, x := range extra {
		list = append(list, safetensors.Named{Name: name, Tensor: x})
	}
	var file bytes.Buffer
	require.NoError(t, s.cache.Save(t.Context(), &file, meta, list...))
	return file.Bytes()
}

// TestOldSessions: files from before the state of compression while decoding was saved
// load if nothing depends on it, and loading says so if something does.
func TestOldSessions(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	old := func(state *savedSession, extra map[string]tensor.Tensor) { state.Version = 1; clear(extra) }
	for mode, d := range map[string]lukv.DecodeConfig{
		"none": {}, "streaming": {Mode: "streaming", TargetSize: 30}, "tova": {Mode: "tova", TargetSize: 30},
		"periodic": {Mode: "periodic", TargetSize: 30, Interval: 6, Metric: &lukv.MetricConfig{Name: "knorm"}},
	} {
		o := SessionOptions{Compression: &lukv.Policy{Decode: d}}
		s := newTestSession(t, m, o)
		require.NoError(t, s.Prefill(ctx, randomTokens(40, 97, 1)))
		require.NoError(t, s.Append(ctx, 5))
		file := resaved(t, s, old)
		if mode != "periodic" {
			goOn(t, mode, rand.New(rand.NewPCG(1, 1)), s, load(t, m, file, SessionOptions{}))
			continue
		}
		_, err := m.LoadSessionFrom(t.Context(), "file", bytes.NewReader(file), int64(len(file)), SessionOptions{})
		require.ErrorContains(t, err, "version 1")
		require.NoError(t, load(t, m, file, o).Append(ctx, 6), "it begins anew")
	}
	s := newTestSession(t, m, SessionOptions{})
	file := resaved(t, s, func(state *savedSession, _ map[string]tensor.Tensor) { state.Version = savedVersion + 1 })
	_, err := m.LoadSessionFrom(t.Context(), "file", bytes.NewReader(file), int64(len(file)), SessionOptions{})
	require.ErrorContains(t, err, "of version 3, expected 1 to 2")
}

// TestRenumberedSessions: sessions stay renumbered in a file: their positions are not
// those of their tokens, so that no span of them can be compressed.
func TestRenumberedSessions(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	s := newTestSession(t, m, SessionOptions{Compression: rerotating()})
	require.NoError(t, s.Prefill(ctx, randomTokens(40, 97, 1)))
	require.NoError(t, s.Prefill(ctx, randomTokens(20, 97, 2)))
	half := &lukv.Policy{Ratio: 0.5}
	require.ErrorContains(t, s.Compress(ctx, Span{20, 40}, half), "renumbered")
	again := load(t, m, save(t, s, ""), SessionOptions{})
	require.ErrorContains(t, again.Compress(ctx, Span{20, 40}, half), "renumbered")
	require.NoError(t, again.Truncate(0))
	require.NoError(t, again.Prefill(ctx, randomTokens(40, 97, 1)))
	require.NoError(t, again.Compress(ctx, Span{20, 40}, half), "as new")
}

// TestStateThatContradictsItself: a file with a valid checksum and an inconsistent state
// gives an error, not a panic.
func TestStateThatContradictsItself(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	open := func(d lukv.DecodeConfig) *Session {
		s := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Decode: d}})
		require.NoError(t, s.Prefill(ctx, randomTokens(40, 97, 1)))
		for i := range int32(4) {
			require.NoError(t, s.Append(ctx, i))
		}
		return s
	}
	sums := open(lukv.DecodeConfig{Mode: "h2o", TargetSize: 60})
	rows := open(lukv.DecodeConfig{Mode: "periodic", TargetSize: 30, Interval: 9, Buffer: 8, Metric: &lukv.MetricConfig{Name: "expected_attention"}})
	type state = map[string]tensor.Tensor
	ints := func(name string, i int, v int64) func(state) {
		return func(x state) { x[name] = tensor.FromI64s(replaced(x[name].Int64s(nil), i, v), x[name].Shape...) }
	}
	i32 := func(name string, i int, v byte) func(state) { return func(x state) { x[name].Data[4*i] = v } }
	for _, c := range []struct {
		s      *Session
		want   string
		change func(state)
	}{
		{sums, `"decode.passes": found`, func(x state) { delete(x, "decode.passes") }},
		{sums, "layer 1: found -1 passes", ints("decode.passes", 1, -1)},
		{sums, "found -2 passes", ints("decode.passes", 0, -2)},
		{sums, "head 0: found 99 entries", ints("decode.0.lens", 0, 99)},
		{sums, "head 0: found -1 entries", ints("decode.0.lens", 0, -1)},
		{sums, "expected 87", ints("decode.0.lens", 1, 43)},
		{sums, "found 0 heads", func(x state) { delete(x, "decode.0.lens") }},
		{sums, "found 0 sums of 88", func(x state) { delete(x, "decode.0.sums") }},
		{sums, "expected I64 with 1 dimension", func(x state) { x["decode.0.seen"] = tensor.Make(tensor.I64, 44, 2) }},
		{sums, "after RoPE: found 1 rows", func(x state) { x["decode.0.post.positions"] = tensor.Make(tensor.I32, 1) }},
		{rows, "found position 60 after", i32("decode.0.pre.positions", 3, 60)},
		{rows, "found position 1 after", i32("decode.0.pre.positions", 3, 1)},
		{rows, "values for 4 rows", func(x state) { delete(x, "decode.0.pre.rows") }},
		{rows, "values for 4 rows", func(x state) { x["decode.0.pre.rows"] = tensor.Make(tensor.F32, 4, 3) }},
		{rows, "expected at most 8", func(x state) { x["decode.0.pre.positions"] = tensor.Make(tensor.I32, 9) }},
		{rows, "found accumulated attention", func(x state) {
			x["decode.0.lens"], x["decode.0.sums"], x["decode.0.seen"] = tensor.Make(tensor.I64, 2), tensor.Make(tensor.F64, 0), tensor.Make(tensor.I64, 0)
		}},
	} {
		file := resaved(t, c.s, func(_ *savedSession, x state) {
			for name, v := range x { // leave the session's own alone
				v.Data = slices.Clone(v.Data)
				x[name] = v
			}
			c.change(x)
		})
		_, err := m.LoadSessionFrom(t.Context(), "file", bytes.NewReader(file), int64(len(file)), SessionOptions{})
		require.ErrorContains(t, err, c.want)
		require.True(t, strings.Contains(err.Error(), "state of the compression while decoding"), err)
	}
	file := save(t, rows, "")
	_, err := m.LoadSessionFrom(t.Context(), "file", bytes.NewReader(file), int64(len(file)), SessionOptions{MaxCacheBytes: 100})
	require.ErrorIs(t, err, kvcache.ErrFull)
}

func replaced(v []int64, i int, x int64) []int64 {
	v[i] = x
	return v
}
