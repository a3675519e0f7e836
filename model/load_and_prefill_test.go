package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
)

// hesitant is a file that is read with pauses at random places, and not beyond end. It
// calls at, if that is not nil, when so much of it has been read.
type hesitant struct {
	data []byte
	rng  *rand.Rand
	end  int
	at   map[int]func()
}

func (h *hesitant) ReadAt(p []byte, off int64) (int, error) {
	if h.rng.IntN(4) == 0 {
		time.Sleep(time.Duration(h.rng.IntN(300)) * time.Microsecond)
	}
	for from, f := range h.at {
		if int(off)+len(p) >= from {
			delete(h.at, from)
			f()
		}
	}
	if int(off)+len(p) > h.end {
		return 0, errors.New("the disk is broken")
	}
	return bytes.NewReader(h.data).ReadAt(p, off)
}

// TestLoadAndPrefill compares loading and feeding at the same time with one after the
// other: the bits, the positions and what the sessions do next are the same.
func TestLoadAndPrefill(t *testing.T) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(11, 2))
	for _, shape := range testShapes {
		m := shape.open(t, WithThreads(2))
		for i, o := range []SessionOptions{
			{},
			{Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "knorm"}, Ratio: 0.6}},
			{Compression: &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "tova", TargetSize: 30}}},
		} {
			s := newTestSession(t, m, o)
			require.NoError(t, s.Prefill(ctx, randomTokens(150, 97, uint64(i))))
			file := save(t, s, "")
			for _, n := range []int{0, 1, 7, 40} {
				tokens := randomTokens(n, 97, uint64(n))
				want := load(t, m, file, SessionOptions{})
				require.NoError(t, want.Prefill(ctx, tokens))
				what := fmt.Sprintf("%v, options %d, %d tokens", shape, i, n)
				got, err := m.LoadAndPrefill(ctx, "file", &hesitant{data: file, rng: rng, end: len(file)}, int64(len(file)), SessionOptions{ChunkTokens: 16}, tokens)
				require.NoError(t, err, what)
				require.Equal(t, want.Tokens(), got.Tokens(), what)
				testnum.SameBits(t, what, want.Logits(), got.Logits())
				require.Equal(t, save(t, want, "x"), save(t, got, "x"), what)
				goOn(t, what, rng, want, got)
				require.NoError(t, got.Close())
			}
		}
	}
}

// TestLoadAndPrefillFails: a file that cannot be read to its end, or was altered, is an
// error wherever the prefill stands, and what it computed goes with it.
func TestLoadAndPrefillFails(t *testing.T) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(12, 2))
	m := testShapes[0].open(t, WithThreads(2), WithMaxMemory(1<<30))
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(ctx, randomTokens(300, 97, 1)))
	file := save(t, s, "")
	require.NoError(t, s.Close())
	held := m.memory.Used()
	tokens := randomTokens(20, 97, 2)
	header := 8 + int(file[0]) | int(file[1])<<8 | int(file[2])<<16
	for i := range 60 {
		f := &hesitant{data: file, rng: rng, end: len(file)}
		want := "disk is broken"
		if i%2 == 0 {
			f.end = header + rng.IntN(len(file)-header)
		} else {
			f.data = bytes.Clone(file)
			f.data[header+200+rng.IntN(len(file)-header-200)] ^= 0x40
			want = "" // a checksum, or positions that do not ascend
		}
		got, err := m.LoadAndPrefill(ctx, "file", f, int64(len(file)), SessionOptions{}, tokens)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "load session: file")
		require.Nil(t, got)
		require.Equal(t, held, m.memory.Used(), "nothing is held")
	}
}

// TestLoadAndPrefillKeepsTheSession: a prefill that fails alone leaves the session as it
// was saved.
func TestLoadAndPrefillKeepsTheSession(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 2))
	m := testShapes[0].open(t, WithThreads(2))
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(t.Context(), randomTokens(300, 97, 1)))
	file := save(t, s, "")
	tokens := randomTokens(20, 97, 2)
	from := func(at map[int]func()) io.ReaderAt { return &hesitant{data: file, rng: rng, end: len(file), at: at} }
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got, err := m.LoadAndPrefill(ctx, "file", from(map[int]func(){rng.IntN(len(file)): cancel}), int64(len(file)), SessionOptions{}, tokens)
		if err != nil { // or the prefill was over
			require.ErrorIs(t, err, context.Canceled)
			if got == nil { // not all had been read
				continue
			}
			require.Equal(t, s.Tokens(), got.Tokens(), "case %d", i)
			require.NoError(t, got.Prefill(t.Context(), tokens))
		}
		want := load(t, m, file, SessionOptions{})
		require.NoError(t, want.Prefill(t.Context(), tokens))
		require.Equal(t, save(t, want, ""), save(t, got, ""))
		require.NoError(t, got.Close())
	}
	got, err := m.LoadAndPrefill(t.Context(), "file", from(nil), int64(len(file)), SessionOptions{MaxTokens: 310}, tokens)
	require.ErrorIs(t, err, ErrContextFull)
	require.Equal(t, file, save(t, got, ""))
	require.NoError(t, got.Close())
	got, err = m.LoadAndPrefill(t.Context(), "file", from(nil), int64(len(file)), SessionOptions{MaxCacheBytes: s.Stats().CacheBytes}, randomTokens(40, 97, 3))
	require.ErrorIs(t, err, kvcache.ErrFull)
	require.Equal(t, file, save(t, got, ""))
	require.NoError(t, got.Close())
}

// TestLoadGivesMemoryBack: a file whose checksum is right and whose positions are not takes
// nothing from the memory of all sessions for good.
func TestLoadGivesMemoryBack(t *testing.T) {
	m := testShapes[0].open(t, WithMaxMemory(64<<20))
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(t.Context(), randomTokens(50, 97, 1)))
	s.pos, s.tokens = 40, s.tokens[:40]
	var b bytes.Buffer
	require.NoError(t, s.SaveTo(t.Context(), &b, ""))
	used := m.memory.Used()
	_, err := m.LoadSessionFrom(t.Context(), "x", bytes.NewReader(b.Bytes()), int64(b.Len()), SessionOptions{})
	require.ErrorContains(t, err, "holds position 49")
	_, err = m.LoadAndPrefill(t.Context(), "x", bytes.NewReader(b.Bytes()), int64(b.Len()), SessionOptions{}, []int32{1})
	require.ErrorContains(t, err, "holds position 49")
	require.Equal(t, used, m.memory.Used())
}

// TestCancelledSessionFiles: saving and loading end with their context. The session can go
// on, and nothing stays charged.
func TestCancelledSessionFiles(t *testing.T) {
	m := testShapes[0].open(t, WithMaxMemory(64<<20))
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(t.Context(), randomTokens(50, 97, 1)))
	var b bytes.Buffer
	require.NoError(t, s.SaveTo(t.Context(), &b, ""))
	used := m.memory.Used()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "session")
	require.ErrorIs(t, s.Save(ctx, path), context.Canceled)
	require.NoFileExists(t, path)
	require.ErrorIs(t, s.SaveTo(ctx, io.Discard, ""), context.Canceled)
	file, size := bytes.NewReader(b.Bytes()), int64(b.Len())
	_, err := m.LoadSessionFrom(ctx, "x", file, size, SessionOptions{})
	require.ErrorIs(t, err, context.Canceled)
	got, err := m.LoadAndPrefill(ctx, "x", file, size, SessionOptions{}, []int32{1})
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, got)
	require.Equal(t, used, m.memory.Used())
	require.NoError(t, s.Append(t.Context(), 1))
}
