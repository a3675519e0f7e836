package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// stores returns the files of a store.
func stores(t testing.TB, dir string) []string {
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	require.NoError(t, err)
	return files
}

// TestStore: what was read is there after a restart, with the same bits; files that are
// damaged, or belong to another model, affect nothing else.
func TestStore(t *testing.T) {
	m := openModel(t)
	tokens, contexts := prompts(t, m, 2)
	dir := t.TempDir()
	o := Options{MaxBytes: 64 << 20, Store: dir}
	answer := model.Sampling{MaxTokens: 8, LogProbs: true, IgnoreEOS: true}
	document := Request{
		Prompt: tokens[0][:contexts[0]], Context: contexts[0], PromptOnly: true, Salt: "salt",
		Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "snapkv"}},
	}
	question := document
	question.Prompt, question.PromptOnly, question.Sampling = tokens[0], false, answer
	plain := Request{Prompt: tokens[1], Sampling: answer}
	want := map[bool]*outcome{true: alone(t, m, question), false: alone(t, m, plain)}
	submit := func(e *Engine, r Request) (*outcome, Usage) {
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		return collect(t, s, 1), s.Usage()
	}
	// ask asks both and returns how many tokens were kept.
	ask := func(e *Engine) (compressed, uncompressed int) {
		got, u := submit(e, question)
		require.True(t, equal(got, want[true]))
		compressed = u.Cached
		got, u = submit(e, plain)
		require.True(t, equal(got, want[false]))
		return compressed, u.Cached
	}

	e := newEngine(t, m, o)
	submit(e, document)
	require.Len(t, stores(t, dir), 1, "a prompt alone is on disk when its request ends")
	size := e.Stats().StoredBytes
	info, err := os.Stat(stores(t, dir)[0])
	require.NoError(t, err)
	require.Equal(t, info.Size(), size)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	submit(e, plain)
	require.NoError(t, e.Close())
	require.Len(t, stores(t, dir), 2, "the rest when the engine is closed")

	e = newEngine(t, m, o)
	compressed, uncompressed := ask(e)
	require.Equal(t, contexts[0], compressed)
	require.Equal(t, len(tokens[1]), uncompressed, "with its logits")
	require.EqualValues(t, 2, e.Stats().LoadedFiles)
	ask(e)
	require.EqualValues(t, 2, e.Stats().LoadedFiles, "once")
	// Requests with another salt or policy do not get it.
	for _, change := range []func(*Request){
		func(r *Request) { r.Salt = "other" },
		func(r *Request) { r.Policy = &lukv.Policy{Ratio: 0.4, Metric: lukv.MetricConfig{Name: "snapkv"}} },
		func(r *Request) { r.Context -= 20 },
	} {
		other := question
		change(&other)
		_, u := submit(e, other)
		require.Zero(t, u.Cached)
	}
	require.NoError(t, e.Close())

	// All kinds of damage.
	files := stores(t, dir)
	for i, name := range files {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		switch i % 3 {
		case 0:
			data = data[:len(data)-100]
		case 1:
			data[len(data)/2] ^= 1
		case 2:
			data = data[:10]
		}
		require.NoError(t, os.WriteFile(name, data, 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(files[0]), "notes"), nil, 0o600))
	e = newEngine(t, m, o)
	compressed, uncompressed = ask(e)
	require.Zero(t, compressed+uncompressed)
	require.NoError(t, e.Close())

	// A session under the name of another is not taken for it.
	files = slices.DeleteFunc(stores(t, dir), func(name string) bool { return filepath.Base(name) == "notes" })
	require.GreaterOrEqual(t, len(files), 2)
	a, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(files[1], a, 0o600))
	e = newEngine(t, m, o)
	require.Len(t, stores(t, dir), len(files), "it and the notes are left, and others")
	ask(e)

	// What is forgotten is gone, from memory and disk.
	require.NoError(t, e.Forget(document))
	compressed, _ = ask(e)
	require.Zero(t, compressed)
	require.NoError(t, e.Close())

	// A bound on the bytes: the least recently used goes.
	o.StoreBytes = size + size/4
	e = newEngine(t, m, o)
	require.LessOrEqual(t, e.Stats().StoredBytes, o.StoreBytes)
	for i := range 3 {
		r := document
		r.Context -= i
		r.Prompt = r.Prompt[:r.Context]
		submit(e, r)
		require.LessOrEqual(t, e.Stats().StoredBytes, o.StoreBytes)
	}
	require.NoError(t, e.Close())
	total := int64(0)
	for _, name := range stores(t, dir) {
		info, err := os.Stat(name)
		require.NoError(t, err)
		total += info.Size()
	}
	require.LessOrEqual(t, total, o.StoreBytes)
	require.Positive(t, total)

	// One engine at a time, until it is closed.
	e = newEngine(t, m, o)
	_, err = New(m, o)
	require.ErrorContains(t, err, dir+" is in use by another engine")
	require.NoError(t, e.Close())
	e = newEngine(t, m, o)
	require.NoError(t, e.Close())

	_, err = New(m, Options{Store: filepath.Join(filepath.Dir(files[0]), "notes", "x")})
	require.ErrorContains(t, err, "store")
	_, err = New(m, Options{StoreBytes: 1})
	require.ErrorContains(t, err, "without a folder")
}

// TestStoreBoundWhileWriting: files that are being written at the same time count towards
// the bound, too, and each is written in its turn.
func TestStoreBoundWhileWriting(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	dir := t.TempDir()
	request := func(i int) Request {
		r := Request{Prompt: slices.Clone(tokens[0]), PromptOnly: true}
		r.Prompt[0] = int32(i)
		return r
	}
	e := newEngine(t, m, Options{Store: dir})
	s, err := e.Submit(within(t), request(0))
	require.NoError(t, err)
	collect(t, s, 1)
	one := e.Stats().StoredBytes
	require.NoError(t, e.Close())

	e = newEngine(t, m, Options{Store: dir, StoreBytes: 5 * one / 2})
	var most int64
	done, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			total := int64(0)
			for _, name := range stores(t, dir) {
				if info, err := os.Stat(name); err == nil {
					total += info.Size()
				}
			}
			most = max(most, total)
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	const n = 24
	_, release := occupy(t, e)
	var streams []*Stream
	for i := range n {
		s, err := e.Submit(within(t), request(1+i))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	release()
	for _, s := range streams {
		collect(t, s, 1)
	}
	close(done)
	<-watched
	require.LessOrEqual(t, most, 5*one/2)
	require.Equal(t, 2*one, e.Stats().StoredBytes)
	require.NoError(t, e.Close())
	require.Len(t, stores(t, dir), 2)

	// Whoever waits for its turn may go away; the engine ends all the same.
	e = newEngine(t, m, Options{Store: dir, StoreBytes: one})
	_, release = occupy(t, e)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range n {
		s, err := e.Submit(ctx, request(1+n+i))
		require.NoError(t, err)
		go func() {
			s.Usage()
			cancel() // the others, when the first is written
		}()
	}
	release()
	<-ctx.Done()
	require.NoError(t, e.Close())
	require.Zero(t, e.Stats().ReservedBytes)
	require.Len(t, stores(t, dir), 1)
}

// TestStoredStaysWithoutMemory: a file that cannot be read now for lack of memory does not
// count as damaged, and is read once there is memory.
func TestStoredStaysWithoutMemory(t *testing.T) {
	limit := int64(6 << 20)
	m := openModel(t, model.WithMaxMemory(limit))
	tokens, _ := prompts(t, m, 1)
	dir := t.TempDir()
	r := Request{Prompt: tokens[0], PromptOnly: true}
	ask := func(e *Engine) (cached int, err error) {
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		for _, err = range s.Events() {
		}
		return s.Usage().Cached, err
	}
	e := newEngine(t, m, Options{Store: dir})
	_, err := ask(e)
	require.NoError(t, err)
	require.NoError(t, e.Close())

	e = newEngine(t, m, Options{Store: dir, PrefixCacheBytes: -1})
	full, err := m.NewSession(model.SessionOptions{})
	require.NoError(t, err)
	defer full.Close()
	for err == nil {
		err = full.Prefill(t.Context(), tokens[0][:min(len(tokens[0]), full.MaxTokens()-full.Len())])
	}
	require.ErrorIs(t, err, kvcache.ErrFull)
	cached, err := ask(e)
	require.ErrorIs(t, err, kvcache.ErrFull)
	require.Zero(t, cached)
	require.Zero(t, e.Stats().LoadedFiles)
	require.NoError(t, full.Close())
	cached, err = ask(e)
	require.NoError(t, err)
	require.Equal(t, len(tokens[0]), cached)
	require.EqualValues(t, 1, e.Stats().LoadedFiles)
	require.NoError(t, e.Close())
}

// TestStoreAcrossInstructionSets: what is stored with one instruction set, compressed after
// a protected prefix or not, is continued with another to the same bits, and vice versa.
func TestStoreAcrossInstructionSets(t *testing.T) {
	dir := t.TempDir()
	native := openModel(t, model.WithThreads(2))
	tokens, _ := prompts(t, native, 6)
	request := func(i int) Request {
		r := Request{Prompt: tokens[i], Sampling: model.Sampling{MaxTokens: 4, LogProbs: true, IgnoreEOS: true}}
		if i%2 == 0 {
			r.Policy, r.Context, r.Protected = &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "snapkv"}}, 70, 20
		}
		return r
	}
	var want []*outcome
	for i := range tokens {
		tokens[i] = tokens[i][10*i : 10*i+80] // portable Go is slow
		want = append(want, alone(t, native, request(i)))
	}
	next := 0 // next request that has not been asked
	for i, cpu := range kernels.Variants() {
		m := openModel(t, model.WithCPU(cpu), model.WithThreads(2))
		e := newEngine(t, m, Options{MaxBytes: 64 << 20, Store: dir})
		ask := func(k int) (cached int) {
			s, err := e.Submit(within(t), request(k))
			require.NoError(t, err)
			require.True(t, equal(collect(t, s, 1), want[k]), "%v: request %d", cpu, k)
			return s.Usage().Cached
		}
		for k := max(0, next-2); k < next; k++ {
			require.Equal(t, len(tokens[k]), ask(k), "%v: from the store", cpu)
		}
		for range 2 {
			if next < len(tokens) {
				ask(next)
				next++
			}
		}
		require.NoError(t, e.Close())
		require.Equal(t, i > 0, e.Stats().LoadedFiles > 0, "%v", cpu)
	}
}

// TestRestarts: engines are closed and reopened on the same store while requests arrive,
// wait, are computed and are preempted, and files get damaged: every answer is that of its
// run alone.
func TestRestarts(t *testing.T) {
	for _, cpu := range kernels.Variants() {
		n := 6
		switch {
		case cpu == kernels.Detect():
			if n = 32; testing.Short() {
				n = 12
			}
		case testing.Short():
			continue
		}
		t.Run(cpu.String(), func(t *testing.T) {
			m := openModel(t, model.WithCPU(cpu), model.WithThreads(2))
			requests := mixedRequests(t, m, n)
			if cpu == (kernels.CPU{}) { // slow
				requests = requests[:3]
				for i := range requests {
					r := &requests[i]
					r.Prompt, r.Context, r.Protected = r.Prompt[:40], min(r.Context, 30), min(r.Protected, 20)
					r.Sampling.MaxTokens, r.Choices = 2, 1
				}
			}
			restarts(t, m, requests)
		})
	}
}

// restarts runs the requests twice; only with many must everything have happened.
func restarts(t *testing.T, m *model.Model, requests []Request) {
	n := len(requests)
	want := make([]*outcome, n)
	for i, r := range requests {
		want[i] = alone(t, m, r)
	}
	dir := t.TempDir()
	o := Options{MaxBytes: 4 << 20, MaxRunning: 8, Store: dir, StoreBytes: 3 << 20}
	var mu sync.RWMutex
	e := newEngine(t, m, o)
	var total Stats
	restart := func() {
		mu.RLock()
		old := e
		mu.RUnlock()
		require.NoError(t, old.Close())
		st := old.Stats()
		require.Zero(t, st.ReservedBytes)
		require.LessOrEqual(t, st.StoredBytes, o.StoreBytes)
		total.LoadedFiles += st.LoadedFiles
		total.CachedTokens += st.CachedTokens
		total.Preempted += st.Preempted
		if files := stores(t, dir); len(files) > 1 {
			name := files[rand.IntN(len(files))]
			require.NoError(t, os.Truncate(name, 1000))
		}
		mu.Lock()
		defer mu.Unlock()
		e = newEngine(t, m, o)
	}
	// once asks for an answer and reports false if the engine went away.
	once := func(i int) bool {
		mu.RLock()
		now := e
		mu.RUnlock()
		r := requests[i]
		s, err := now.Submit(within(t), r)
		if rand.IntN(2) == 0 {
			now.post(func() { preemptLast(now) })
		}
		if err == nil {
			got := newOutcome(max(1, r.Choices))
			if got, err = collected(s, got); err == nil && !equal(got, want[i]) {
				t.Errorf("%s (policy %+v, context %d of %d, sampling %+v, preempted %v): differs", r.ID, r.Policy, r.Context, len(r.Prompt), r.Sampling, now.Stats().Preempted)
			}
		}
		if err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", r.ID, err)
		}
		return err == nil || !errors.Is(err, ErrClosed)
	}
	// Chance decides what happens in a round; on some machines one may miss something.
	for round := 0; round < 10 && (round == 0 || n > 8 && min(total.LoadedFiles, total.CachedTokens, total.Preempted) == 0); round++ {
		var wg sync.WaitGroup
		left := make(chan struct{}, 3*n)
		for i := range n {
			wg.Go(func() {
				for range 2 { // the second time, much is kept
					for !once(i) {
						time.Sleep(time.Millisecond)
					}
					left <- struct{}{}
				}
			})
		}
		for range 4 { // each after another fifth of the answers
			for range 2 * n / 5 {
				<-left
			}
			restart()
		}
		wg.Wait()
		restart()
	}
	if n > 8 {
		require.Positive(t, total.LoadedFiles, "something came from the store")
		require.Positive(t, total.CachedTokens)
		require.Positive(t, total.Preempted)
	}
	t.Logf("%+v", total)
}

// preemptLast takes the cache of the last request, as if there were no room for it; it is
// posted to the loop.
func preemptLast(e *Engine) {
	if len(e.running) == 0 || e.closing {
		return
	}
	j := e.running[len(e.running)-1]
	e.leave(j)
	j.preempted = true
	e.stats.preempted.Add(1)
	e.queue.pushFront(j)
}

// TestPreemptedWhileCompressing takes the cache of an answer every few tokens:
// compression while decoding counts the passes that led to it.
func TestPreemptedWhileCompressing(t *testing.T) {
	m := openModel(t)
	tokens, contexts := prompts(t, m, 1)
	preempted := int64(0)
	for _, d := range []lukv.DecodeConfig{
		{Mode: "periodic", TargetSize: 64, Interval: 8},
		{Mode: "tova", TargetSize: 64},
		{Mode: "h2o", TargetSize: 64},
		{Mode: "streaming", TargetSize: 64},
	} {
		t.Run(d.Mode, func(t *testing.T) {
			r := Request{
				Prompt: tokens[0], Context: contexts[0], Policy: &lukv.Policy{Decode: d},
				Sampling: model.Sampling{MaxTokens: 30, IgnoreEOS: true, LogProbs: true},
			}
			want := alone(t, m, r)
			e := newEngine(t, m, Options{})
			r.Mask = func(_ context.Context, _ int, answer []int32) ([]uint64, error) {
				if len(answer)%7 == 6 {
					e.post(func() { preemptLast(e) })
				}
				return nil, nil
			}
			s, err := e.Submit(within(t), r)
			require.NoError(t, err)
			got := collect(t, s, 1)
			require.True(t, equal(got, want), "found %v, expected %v", got, want)
			require.NoError(t, e.Close())
			preempted += e.Stats().Preempted
		})
	}
	require.Positive(t, preempted)
}

// collected is collect for streams that may fail.
func collected(s *Stream, out *outcome) (*outcome, error) {
	for ev, err := range s.Events() {
		if err != nil {
			return nil, err
		}
		if ev.HasToken {
			out.ids[ev.Choice] = append(out.ids[ev.Choice], ev.Token.ID)
			out.probs[ev.Choice] = append(out.probs[ev.Choice], ev.Token.LogProb)
		}
		out.text[ev.Choice] += ev.Text
		out.finish[ev.Choice] = ev.Finish
	}
	return out, nil
}

// TestForgetStored: without an engine, what one would forget is removed from its store, and
// nothing else.
func TestForgetStored(t *testing.T) {
	m := openModel(t)
	tokens, contexts := prompts(t, m, 1)
	dir := t.TempDir()
	o := Options{MaxBytes: 64 << 20, Store: dir}
	document := Request{
		Prompt: tokens[0][:contexts[0]], Context: contexts[0], PromptOnly: true,
		Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "knorm"}},
	}
	question := document
	question.Prompt, question.PromptOnly, question.Sampling = tokens[0], false, model.Sampling{MaxTokens: 1}
	salted := document
	salted.Salt = "other"
	e := newEngine(t, m, o)
	stored, err := e.StoredPrefix(document)
	require.NoError(t, err)
	for _, r := range []Request{document, question, salted} {
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		collect(t, s, 1)
	}
	require.ErrorContains(t, ForgetStored(dir, stored), "in use by another engine")
	require.NoError(t, e.Close())
	files := stores(t, dir)
	require.Len(t, files, 3, "the document, what goes on from it, and another")
	require.NoError(t, ForgetStored(dir, stored))
	left := stores(t, dir)
	require.Len(t, left, 1)
	e = newEngine(t, m, o)
	for r, want := range map[*Request]int{&salted: len(document.Prompt), &question: 0} {
		ask := *r
		s, err := e.Submit(within(t), ask)
		require.NoError(t, err)
		collect(t, s, 1)
		require.Equal(t, want, s.Usage().Cached)
	}
	require.NoError(t, e.Close())

	require.NoError(t, ForgetStored(t.TempDir(), stored), "nothing is there")
	for _, bad := range []string{"", "x", "../.." + stored, strings.Replace(stored, " ", " 0", 1)} {
		require.ErrorContains(t, ForgetStored(dir, bad), "expected what an engine said")
	}
}

// TestContextIsCompressedBehindAStoredFront: of a prompt whose protected tokens alone are
// stored, the context is compressed as ever.
func TestContextIsCompressedBehindAStoredFront(t *testing.T) {
	m := openModel(t)
	tokens, contexts := prompts(t, m, 1)
	o := Options{MaxBytes: 64 << 20, Store: t.TempDir()}
	const front = 20
	e := newEngine(t, m, o)
	s, err := e.Submit(within(t), Request{Prompt: tokens[0][:front], PromptOnly: true})
	require.NoError(t, err)
	collect(t, s, 1)
	require.NoError(t, e.Close())
	r := Request{
		Prompt: tokens[0], Protected: front, Context: contexts[0], Sampling: model.Sampling{MaxTokens: 6, LogProbs: true, IgnoreEOS: true},
		Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}},
	}
	e = newEngine(t, m, o)
	s, err = e.Submit(within(t), r)
	require.NoError(t, err)
	require.True(t, equal(collect(t, s, 1), alone(t, m, r)))
	require.Equal(t, front, s.Usage().Cached)
	require.EqualValues(t, 1, e.Stats().LoadedFiles)
	require.NoError(t, e.Close())
}

// TestQuestionIsReadWhileItsFileLoads: the first question about a stored document takes no
// pass of the engine before its answer, and others that wait for the file, cancel it, or
// come later get what they get alone.
func TestQuestionIsReadWhileItsFileLoads(t *testing.T) {
	m := openModel(t)
	tokens, contexts := prompts(t, m, 1)
	dir := t.TempDir()
	o := Options{MaxBytes: 64 << 20, Store: dir}
	policy := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}
	document := Request{Prompt: tokens[0][:contexts[0]], Context: contexts[0], PromptOnly: true, Policy: policy}
	ask := func(last int32) Request {
		r := document
		r.PromptOnly, r.Sampling = false, model.Sampling{MaxTokens: 6, LogProbs: true, IgnoreEOS: true}
		r.Prompt = append(slices.Clone(tokens[0]), last)
		return r
	}
	e := newEngine(t, m, o)
	s, err := e.Submit(within(t), document)
	require.NoError(t, err)
	collect(t, s, 1)
	require.NoError(t, e.Close())
	stored := stores(t, dir)
	for name, others := range map[string]int{"one": 0, "three": 2} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, m, o)
			submitted := func() {}
			if others > 0 { // nobody is answered before all have asked
				_, submitted = occupy(t, e)
			}
			var streams []*Stream
			for i := range 1 + others {
				s, err := e.Submit(within(t), ask(int32(20+i)))
				require.NoError(t, err)
				streams = append(streams, s)
			}
			submitted()
			for i, s := range streams {
				got := collect(t, s, 1)
				require.True(t, equal(got, alone(t, m, ask(int32(20+i)))), "question %d", i)
				require.Equal(t, contexts[0], s.Usage().Cached)
				require.Equal(t, contexts[0], s.Cached())
			}
			require.EqualValues(t, 1, e.Stats().LoadedFiles)
			if others == 0 {
				require.EqualValues(t, 5, e.Stats().Steps, "one pass for each token but the first")
			}
			s, err := e.Submit(within(t), ask(40))
			require.NoError(t, err)
			require.True(t, equal(collect(t, s, 1), alone(t, m, ask(40))))
			require.Equal(t, len(tokens[0]), s.Usage().Cached, "the first question, up to its last token")
			require.NoError(t, e.Close())
			for _, name := range stores(t, dir) {
				if !slices.Contains(stored, name) {
					require.NoError(t, os.Remove(name))
				}
			}
		})
	}
	e = newEngine(t, m, o)
	for i := range 20 { // at once, while the file loads, later
		ctx, cancel := context.WithCancel(t.Context())
		s, err = e.Submit(ctx, ask(20))
		require.NoError(t, err)
		time.Sleep(time.Duration(i) * 200 * time.Microsecond)
		cancel()
		for range s.Events() {
		}
		if i%5 == 4 {
			require.NoError(t, e.Close()) // so that the next request finds nothing in memory
			require.Subset(t, stores(t, dir), stored, "a file whose load was cancelled is not damaged")
			require.Zero(t, e.Stats().ReservedBytes)
			e = newEngine(t, m, o)
		}
	}
	s, err = e.Submit(within(t), ask(21))
	require.NoError(t, err)
	require.True(t, equal(collect(t, s, 1), alone(t, m, ask(21))))
	require.GreaterOrEqual(t, s.Usage().Cached, contexts[0])
	require.NoError(t, e.Close())
}
