package serve

import (
	"context"
	"errors"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// onDemand serves models a, b, … that are opened on demand, and counts what is open.
func onDemand(t *testing.T, o Options, eo engine.Options, names ...string) (ts *testServer, opened *atomic.Int64) {
	s := New(o)
	opened = &atomic.Int64{}
	for _, id := range names {
		require.NoError(t, s.AddOnDemand(id, func(ctx context.Context) (*model.Model, error) {
			opened.Add(1)
			return builtin.Open(ctx, model.WithThreads(1))
		}, eo))
	}
	ts = &testServer{Server: httptest.NewServer(s.Handler()), s: s}
	t.Cleanup(func() {
		require.NoError(t, s.Drain(context.Background()))
		for _, sl := range s.models.order {
			require.Nil(t, sl.loaded)
			require.Zero(t, sl.holds)
		}
		require.Zero(t, s.models.bytes)
		ts.Close()
	})
	return ts, opened
}

func loaded(ts *testServer, id string) bool { return ts.s.models.entry(ts.s.models.find(id)).Loaded }

// waitUnloaded waits until a model is unloaded.
func waitUnloaded(ts *testServer, id string) {
	ms := ts.s.models
	for {
		ms.mu.Lock()
		changed, gone := ms.changed, ms.byID[id].loaded == nil && ms.byID[id].busy == nil
		ms.mu.Unlock()
		if gone {
			return
		}
		<-changed
	}
}

// TestModelsOnDemand: nothing is loaded that nobody asked for, many requests load a
// model once, and it is unloaded when nobody uses it, but its counters stay.
func TestModelsOnDemand(t *testing.T) {
	ts, opened := onDemand(t, Options{UnloadAfter: time.Millisecond}, engine.Options{}, "a", "b")
	var list struct{ Data []modelEntry }
	_, text, _ := ts.do(t, "GET", "/v1/models", "")
	decode(t, text, &list)
	require.Len(t, list.Data, 2)
	require.False(t, list.Data[0].Loaded || list.Data[1].Loaded)
	require.Zero(t, opened.Load())

	// Held until all of these are over.
	_, release, err := ts.s.models.acquire(context.Background(), ts.s.models.find("b"))
	require.NoError(t, err)
	var wg sync.WaitGroup
	answers := make([]chatAnswer, 8)
	for i := range answers {
		wg.Go(func() {
			ts.post(t, "/v1/chat/completions", ask("hello", object{"model": "b", "max_tokens": 4, "temperature": 0}), &answers[i])
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, opened.Load())
	require.True(t, loaded(ts, "b"))
	require.False(t, loaded(ts, "a"))
	for _, a := range answers {
		require.Equal(t, answers[0].Choices[0].Message, a.Choices[0].Message)
	}
	_, text, _ = ts.do(t, "GET", "/v1/models/b", "")
	require.Contains(t, text, `"max_model_len":2048`)
	release()
	waitUnloaded(ts, "b")
	_, text, _ = ts.do(t, "GET", "/metrics", "")
	require.Contains(t, text, "lukv:model_loaded{model_name=\"b\"} 0\n")
	require.Contains(t, text, "vllm:request_success_total{model_name=\"b\",finished_reason=\"length\"} 8\n")
	require.Contains(t, text, "vllm:e2e_request_latency_seconds_count{model_name=\"b\"} 8\n")

	var again chatAnswer
	ts.post(t, "/v1/chat/completions", ask("hello", object{"model": "b", "max_tokens": 4, "temperature": 0}), &again)
	require.EqualValues(t, 2, opened.Load())
	require.Equal(t, answers[0].Choices[0].Message, again.Choices[0].Message)
}

// TestCountersNeverGoBack: not even while a model is being unloaded.
func TestCountersNeverGoBack(t *testing.T) {
	ts, _ := onDemand(t, Options{}, engine.Options{}, "a")
	ts.post(t, "/v1/chat/completions", ask("hello", object{"model": "a", "max_tokens": 1}), &object{})
	ms, sl := ts.s.models, ts.s.models.find("a")
	for { // until the handler is over
		ms.mu.Lock()
		if sl.holds == 0 {
			break
		}
		changed := ms.changed
		ms.mu.Unlock()
		<-changed
	}
	ms.unload(sl)
	require.NotNil(t, sl.busy)
	ms.mu.Unlock()
	for gone := false; !gone; {
		ms.mu.Lock()
		gone = sl.busy == nil
		ms.mu.Unlock()
		st, on := ms.stats(sl)
		require.EqualValues(t, 1, st.Completed)
		require.False(t, on)
	}
}

// TestModelsByBytes: with room for one, models take turns, and requests wait for one
// that is in use.
func TestModelsByBytes(t *testing.T) {
	m, err := builtin.Open(context.Background())
	require.NoError(t, err)
	one := m.WeightBytes() + 16<<20
	require.NoError(t, m.Close())
	ts, opened := onDemand(t, Options{MaxModelBytes: one + one/2}, engine.Options{MaxBytes: 16 << 20}, "a", "b", "c")
	_, release, err := ts.s.models.acquire(context.Background(), ts.s.models.find("a"))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for _, id := range []string{"b", "c", "b", "c"} {
		wg.Go(func() {
			var a chatAnswer
			ts.post(t, "/v1/chat/completions", ask("hello", object{"model": id, "max_tokens": 2}), &a)
			require.Equal(t, id, a.Model)
		})
	}
	for ts.s.models.waiters() < 4 {
		runtime.Gosched()
	}
	require.True(t, loaded(ts, "a"), "it is in use")
	// A client that goes away no longer waits.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err = ts.s.models.acquire(ctx, ts.s.models.find("b"))
	require.ErrorIs(t, err, context.Canceled)
	release()
	wg.Wait()
	waitUnloaded(ts, "a")
	require.GreaterOrEqual(t, opened.Load(), int64(3))
	require.LessOrEqual(t, ts.s.models.bytes, one+one/2)
}

// TestModelNobodyWaitedFor: a model that was loaded for requests that are gone is
// unloaded like one that was used.
func TestModelNobodyWaitedFor(t *testing.T) {
	s := New(Options{UnloadAfter: time.Millisecond})
	opening, goOn := make(chan struct{}), make(chan struct{})
	require.NoError(t, s.AddOnDemand("m", func(context.Context) (*model.Model, error) {
		close(opening)
		<-goOn
		return builtin.Open(context.Background(), model.WithThreads(1))
	}, engine.Options{}))
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, _, err := s.models.acquire(ctx, s.models.find("m"))
		gone <- err
	}()
	<-opening
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	close(goOn)
	waitUnloaded(&testServer{s: s}, "m")
	require.Zero(t, s.models.bytes)
	require.NoError(t, s.Drain(t.Context()))
}

// TestPastCounts: a counter never goes back when a model is opened again; momentary
// figures are those of the running engine.
func TestPastCounts(t *testing.T) {
	moment := []string{"Waiting", "Running", "ReservedBytes", "SavedBytes", "PrefixCacheBytes", "StoredBytes", "MaxBytes"}
	var past engine.Stats
	v := reflect.ValueOf(&past).Elem()
	for i := range v.NumField() {
		v.Field(i).SetInt(7)
	}
	sum := reflect.ValueOf(withPast(engine.Stats{}, past))
	for i := range sum.NumField() {
		name, want := sum.Type().Field(i).Name, int64(7)
		if slices.Contains(moment, name) {
			want = 0
		}
		require.Equal(t, want, sum.Field(i).Int(), name)
	}
}

// waiters returns the number of requests that wait for a model.
func (ms *models) waiters() int {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	n := 0
	for _, sl := range ms.order {
		n += sl.waiting
	}
	return n
}

// TestModelsThatCannotBeLoaded: the error names no files, and the next request tries
// again.
func TestModelsThatCannotBeLoaded(t *testing.T) {
	ts, opened := onDemand(t, Options{MaxModelBytes: 1000}, engine.Options{MaxBytes: 16 << 20}, "large")
	status, text, _ := ts.do(t, "POST", "/v1/chat/completions", `{"model":"large","messages":[{"role":"user","content":"x"}]}`)
	require.Equal(t, 507, status)
	require.Contains(t, text, "model_too_large")
	require.Contains(t, text, "the limit for models is 1000")

	require.NoError(t, ts.s.AddOnDemand("broken", func(context.Context) (*model.Model, error) {
		opened.Add(1)
		return nil, errors.New("open /secret/place: no such file")
	}, engine.Options{}))
	require.ErrorContains(t, ts.s.AddOnDemand("broken", nil, engine.Options{}), "one of this name")
	before := opened.Load()
	for range 2 {
		status, text, _ = ts.do(t, "POST", "/v1/chat/completions", `{"model":"broken","messages":[{"role":"user","content":"x"}]}`)
		require.Equal(t, 500, status)
		require.Contains(t, text, "model_not_loaded")
		require.False(t, strings.Contains(text, "secret"), text)
	}
	require.EqualValues(t, 2, opened.Load()-before)
}

// TestDeleteLoadsNothing: a document of a model that is not open, and its cache on disk,
// are deleted without opening the model, by this server and by one started later.
func TestDeleteLoadsNothing(t *testing.T) {
	dir := t.TempDir()
	eo := engine.Options{MaxBytes: 64 << 20, Store: filepath.Join(dir, "prefixes")}
	caches := func() []string {
		files, err := filepath.Glob(filepath.Join(eo.Store, "*", "*.session"))
		require.NoError(t, err)
		return files
	}
	var ids []string
	t.Run("put", func(t *testing.T) {
		ts, _ := onDemand(t, Options{UnloadAfter: time.Millisecond}, eo, "a")
		require.NoError(t, ts.s.OpenStore(filepath.Join(dir, "documents")))
		for i := range 2 {
			var doc document
			ts.post(t, "/v1/documents", object{"text": sample(i).Context, "kv_compression": object{"ratio": 0.5, "metric": "knorm"}}, &doc)
			ids = append(ids, doc.ID)
		}
		waitUnloaded(ts, "a")
		require.Len(t, caches(), 2)
		before := caches()
		status, text, _ := ts.do(t, "DELETE", "/v1/documents/"+ids[0], "")
		require.Equal(t, 200, status, text)
		require.Len(t, caches(), 1)
		require.Contains(t, before, caches()[0])
	})
	ts, opened := onDemand(t, Options{UnloadAfter: time.Millisecond}, eo, "a")
	require.NoError(t, ts.s.OpenStore(filepath.Join(dir, "documents")))
	status, text, _ := ts.do(t, "DELETE", "/v1/documents/"+ids[1], "")
	require.Equal(t, 200, status, text)
	require.Empty(t, caches())
	require.Zero(t, opened.Load())
	ts.post(t, "/v1/chat/completions", ask("hello", object{"model": "a", "max_tokens": 1}), &object{})
	require.EqualValues(t, 1, opened.Load(), "it can be opened as ever")
}
