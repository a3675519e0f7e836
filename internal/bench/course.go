package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/lukv/lukv/internal/probe"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// course is the measurement of one point.
type course struct {
	r     *runner
	s     *Source
	m     *model.Model
	key   Key
	comp  Compression
	cache CacheType
	opts  model.SessionOptions

	// bases hold the state that every repetition starts from, one session per
	// member of the batch; nil if repetitions start from new sessions.
	bases []*model.Session
	point *Point
}

// disturbance is the relative difference of two probes above which the repetition
// between them does not count.
const disturbance = 0.1

// pageEntries is the default page size of the cache.
const pageEntries = 64

func (c *course) measure(ctx context.Context) (*Point, error) {
	c.point = &Point{Key: c.key}
	policy, err := c.policy()
	if err != nil {
		return nil, err
	}
	// One more token, decoded first, warms up a repetition.
	c.opts = model.SessionOptions{Compression: policy, CacheType: c.cache.Keys, CacheValues: c.cache.Values, MaxTokens: c.key.Depth + c.key.Tokens + 1}
	if err := c.fits(c.need(policy)); err != nil {
		return nil, err
	}
	// Release memory left by earlier points.
	debug.FreeOSMemory()
	defer func() { closeAll(c.bases) }()
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	if err := c.repeat(ctx); err != nil {
		return nil, err
	}
	c.point.summarize()
	return c.point, nil
}

// fits returns ErrMemory if the point's caches do not fit.
func (c *course) fits(need int64) error {
	var there int64
	if dev := c.m.Device(); dev != nil {
		there = need / int64(c.m.Config().Layers) * int64(c.m.DeviceLayers())
		if free := int64(dev.Memory().Free); there > free {
			return fmt.Errorf("cache on the device: %w: it needs %s, %s are free", ErrMemory, Size(there), Size(free))
		}
	}
	return c.r.room("cache", need-there, c.m.WeightBytes())
}

func (c *course) policy() (*lukv.Policy, error) {
	if !c.key.compressed() {
		return nil, nil
	}
	return c.comp.policy(c.m)
}

// layout returns the layout of the cache's pages, entryBytes the size of a key and a value.
func (c *course) layout() kernels.PageLayout {
	return kernels.PageLayout{Type: c.cache.Keys, Values: c.cache.Values, HeadDim: c.m.Config().HeadDim, PageEntries: pageEntries}
}

func (c *course) entryBytes() int64 {
	l := c.layout()
	return int64(l.KeyBytes() + l.ValueBytes())
}

// need estimates the bytes of all caches of the point at their largest.
func (c *course) need(policy *lukv.Policy) int64 {
	cfg := c.m.Config()
	pageBytes := int64(c.layout().Bytes())
	heads := int64(cfg.KVHeads)
	pages := func(n int) int64 { return int64((n + pageEntries - 1) / pageEntries) }
	kept := func(n int) int { // entries of a head, on average
		switch {
		case c.key.BudgetTokens > 0:
			return min(n, c.key.BudgetTokens)
		case c.key.BudgetBytes > 0:
			whole := int64(cfg.Layers) * heads * c.entryBytes()
			return int(min(int64(n), c.key.BudgetBytes/whole+1))
		}
		return int(float64(n)*(1-c.key.Ratio)) + 1
	}
	k := &c.key
	prefillHere := k.Test == TestPrefill && k.Depth == 0 && policy != nil
	atEnd := false
	if prefillHere {
		if plan, err := lukv.NewAllocator(policy.Allocator, policy.Profile); err == nil {
			atEnd = plan.BudgetsKnown() == lukv.KnownAtEnd
		}
	}
	var total, largest, full int64
	for _, w := range cfg.Windows {
		held := k.Depth + k.Tokens + 1
		full += pages(held) * pageBytes * heads // measured alongside
		switch {
		case w > 0:
			held = min(held, w+pageEntries+512)
		case policy != nil && k.Depth > 0:
			held = kept(k.Depth) + k.Tokens + 1
		case prefillHere && !atEnd:
			largest = max(largest, pages(held)*pageBytes*heads)
			held = kept(held)
		}
		// A fork copies one page per head, and ragged heads waste one more.
		total += (pages(held) + 2) * pageBytes * heads
	}
	total = total*int64(k.Batch) + largest
	if prefillHere {
		total += full + 4*int64(k.Tokens)*int64(cfg.Hidden)
	}
	return total + 12*int64(k.Batch)*int64(cfg.Vocab)
}

// prepare fills the sessions that repetitions start from and, for prefill, runs a
// pass so that buffers exist.
func (c *course) prepare(ctx context.Context) error {
	if c.key.Depth > 0 || c.reuse() {
		c.r.progress("%v: filling", c.key)
		for i := range c.key.Batch {
			if err := ctx.Err(); err != nil {
				return err
			}
			s, err := c.m.NewSession(c.opts)
			if err != nil {
				return err
			}
			c.bases = append(c.bases, s)
			if c.key.Depth == 0 {
				continue
			}
			if err := s.FillRandom(c.key.Depth, uint64(i+1)); err != nil {
				return err
			}
		}
	}
	if c.key.Test == TestDecode {
		return nil // each repetition begins with a step that does not count
	}
	const chunk = 512
	s, err := c.m.NewSession(model.SessionOptions{CacheType: c.cache.Keys, CacheValues: c.cache.Values, MaxTokens: chunk})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Prefill(ctx, c.tokens(min(c.key.Tokens, chunk)))
}

// reuse reports whether all repetitions decode with the same sessions, truncated
// in between. Their page tables have then grown after the first, as in steady
// state. With sliding windows that is impossible, as truncation might need entries
// that a window has dropped.
func (c *course) reuse() bool {
	return c.key.Test == TestDecode && slices.Max(c.m.Config().Windows) == 0
}

// sessions returns the sessions to measure with and a function to call after use.
func (c *course) sessions() ([]*model.Session, func(), error) {
	if c.reuse() {
		for _, s := range c.bases {
			if err := s.Truncate(c.key.Depth); err != nil {
				return nil, nil, err
			}
		}
		return c.bases, func() {}, nil
	}
	var out []*model.Session
	for i := range c.key.Batch {
		var s *model.Session
		var err error
		if c.bases == nil {
			s, err = c.m.NewSession(c.opts)
		} else {
			s, err = c.bases[i].Fork()
		}
		if err != nil {
			closeAll(out)
			return nil, nil, err
		}
		out = append(out, s)
	}
	return out, func() { closeAll(out) }, nil
}

func closeAll(sessions []*model.Session) {
	for _, s := range sessions {
		s.Close()
	}
}

func (c *course) tokens(n int) []int32 {
	rng := rand.New(rand.NewPCG(1, 2))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(rng.IntN(c.m.Config().Vocab))
	}
	return out
}

// unit returns the fastest multiply-add that the point's arithmetic allows.
func (c *course) unit() probe.Unit {
	cpu := c.m.CPU()
	set := cpu.String()
	int8 := c.m.Precision() == model.PrecisionInt8
	switch {
	case int8 && cpu.AVX512VNNI:
		return probe.UnitOf("avx512vnni")
	case cpu.DotProd && !int8:
		return probe.UnitOf("neon")
	}
	dots := cpu.AVX512BF16 && !cpu.SlowDot && c.m.Precision() == model.PrecisionBF16 && c.m.Config().Type == tensor.BF16
	if cpu.AVX512 && !dots {
		set = kernels.CPU{AVX2: true, AVX512: true}.String()
	}
	return probe.UnitOf(set)
}

// repeat measures until there are as many undisturbed repetitions as asked for,
// or twice as many in all.
func (c *course) repeat(ctx context.Context) error {
	u, reps := c.unit(), c.r.o.Reps
	if c.r.dev == nil {
		c.point.Unit = u.Name
	}
	good := 0
	for i := 0; good < reps && i < 2*reps; i++ {
		c.r.progress("%v: repetition %d of %d", c.key, good+1, reps)
		s, err := c.once(ctx, u)
		if err != nil {
			return err
		}
		c.point.Samples = append(c.point.Samples, *s)
		if !s.Disturbed {
			good++
		}
	}
	return nil
}

// once measures one repetition between two probes.
func (c *course) once(ctx context.Context, u probe.Unit) (*Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sessions, done, err := c.sessions()
	if err != nil {
		return nil, err
	}
	defer done()
	test := c.prefill
	switch {
	case c.paired():
		test = c.beside
	case c.key.Test == TestDecode:
		test = c.decode
	}
	runtime.GC() // collect earlier repetitions' garbage now, not in the middle of this one
	s := &Sample{}
	var before roof
	took, err := test(ctx, sessions, s, func() { before = c.roof(u) })
	if err != nil {
		return nil, err
	}
	s.Seconds, s.Speed = took.Seconds(), c.speed(took)
	c.account(sessions)
	if c.r.dev != nil {
		return s, nil
	}
	after := c.roof(u)
	s.ReadBefore, s.ReadAfter = before.read, after.read
	s.PeakBefore, s.PeakAfter = before.compute, after.compute
	calls := 1.0
	if c.key.Test == TestDecode {
		calls = float64(c.key.Tokens)
		s.Disturbed = apart(before.read, after.read)
		s.Read = float64(c.point.BytesPerStep) * calls / s.Seconds / ((before.read + after.read) / 2)
	} else {
		s.Disturbed = apart(before.compute, after.compute)
	}
	s.Compute = float64(c.point.Flop+c.point.AttentionFlop) * calls / s.Seconds / ((before.compute + after.compute) / 2)
	return s, nil
}

// roof probes the machine. On an accelerator nothing is probed.
func (c *course) roof(u probe.Unit) roof {
	if c.r.dev != nil {
		return roof{}
	}
	return c.r.p.roof(c.key.Threads, u)
}

// speed returns the tokens per second of a repetition that took the given time.
func (c *course) speed(took time.Duration) float64 {
	return float64(c.key.Tokens) * float64(c.key.Batch) / took.Seconds()
}

// apart reports whether two probes differ too much.
func apart(a, b float64) bool { return max(a, b)-min(a, b) > disturbance*max(a, b) }

// prefill measures one prefill; ready is called right before.
func (c *course) prefill(ctx context.Context, sessions []*model.Session, sample *Sample, ready func()) (time.Duration, error) {
	cfg, s := c.m.Config(), sessions[0]
	tokens := c.tokens(c.key.Tokens)
	n := float64(c.key.Tokens)
	c.point.Flop = 2 * cfg.LayerParams(1) * int64(c.key.Tokens)
	c.point.AttentionFlop = c.attention(s, func(held, window float64) float64 {
		// Token i sees held + i slots, at most the window.
		if window == 0 {
			window = held + n
		}
		rising := min(n, max(0, window-held))
		return rising*held + rising*(rising+1)/2 + (n-rising)*window
	})
	ready()
	done := c.observe(sessions)
	begin := time.Now()
	err := s.Prefill(ctx, tokens)
	took := time.Since(begin)
	done()
	st := s.Stats()
	sample.Ranking = (st.ScoreTime + st.EvictTime).Seconds() / took.Seconds()
	return took, err
}

// decode measures steps of all sessions together; ready is called right before.
func (c *course) decode(ctx context.Context, sessions []*model.Session, sample *Sample, ready func()) (time.Duration, error) {
	cfg := c.m.Config()
	n := c.key.Tokens
	tokens := c.tokens((n + 1) * c.key.Batch)
	step := func(i int) error {
		return c.m.Step(ctx, sessions, tokens[i*c.key.Batch:(i+1)*c.key.Batch])
	}
	if err := step(n); err != nil {
		return 0, err
	}
	// The number of slots seen halfway through the repetition.
	seen := func(held, window float64) float64 {
		held += float64(n+1) / 2
		if window > 0 {
			held = min(held, window)
		}
		return held
	}
	rows := cfg.LayerParams(1) + int64(cfg.Vocab)*int64(cfg.Hidden)
	c.point.Flop = 2 * rows * int64(c.key.Batch)
	c.point.AttentionFlop, c.point.CacheRead = 0, 0
	for _, s := range sessions {
		flop := c.attention(s, seen)
		c.point.AttentionFlop += flop
		// Each slot is one key and one value, used by all heads of a group for
		// 4·HeadDim operations each.
		c.point.CacheRead += flop / int64(2*cfg.Heads/cfg.KVHeads) * c.entryBytes() / int64(2*cfg.HeadDim)
	}
	c.point.BytesPerStep = c.m.StepBytes(c.key.Batch) + c.point.CacheRead
	ready()
	done := c.observe(sessions)
	defer done()
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	begin := time.Now()
	for i := range n {
		if err := step(i); err != nil {
			return 0, err
		}
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&b)
	sample.Allocations = float64(b.Mallocs-a.Mallocs) / float64(n*c.key.Batch)
	return took, nil
}

// attention returns the operations of attention in all layers: 4 · HeadDim for each
// query head and slot that a query sees. slots returns the total number of slots that the
// queries of one query head see if its KV head holds held entries and has the given window,
// 0 for none.
func (c *course) attention(s *model.Session, slots func(held, window float64) float64) int64 {
	cfg, cache := c.m.Config(), s.Cache()
	sum := 0.0
	for at, w := range cfg.Windows {
		for h := range cfg.KVHeads {
			sum += slots(float64(cache.Len(at, h)), float64(w))
		}
	}
	return int64(sum * float64(4*cfg.HeadDim*(cfg.Heads/cfg.KVHeads)))
}

// account records the memory of the point, the largest over the repetitions.
func (c *course) account(sessions []*model.Session) {
	p := c.point
	var held, high, pool, entries, full int64
	for _, s := range sessions {
		st, ps := s.Stats(), s.Cache().PoolStats()
		held += st.CacheBytes
		high += st.PeakBytes
		entries += st.Entries
		full += st.FullEntries
		pool += ps.Bytes + ps.FreeBytes
	}
	p.CacheBytes, p.PeakCacheBytes = max(p.CacheBytes, held), max(p.PeakCacheBytes, high)
	p.Kept = float64(entries) / float64(max(1, full))
	if c.r.dev != nil {
		p.DeviceBytes = max(p.DeviceBytes, int64(c.r.dev.Memory().Used))
		return // its memory may or may not be part of this process's
	}
	if c.s.private {
		// With the weights on the Go heap the collector leaves as much garbage
		// again; with mapped weights it would not. Look once, without it.
		if p.PrivateBytes > 0 {
			return
		}
		debug.FreeOSMemory()
	}
	if private := privateMemory(); private > 0 {
		private -= pool + int64(c.r.p.buf.Bytes())
		if c.s.private {
			private -= c.m.WeightBytes()
		}
		p.PrivateBytes = max(p.PrivateBytes, private)
	}
}

// observe records the peak memory of the process until done is called. With weights on
// the Go heap, the memory beyond weights and caches is not watched, since the collector
// leaves as much garbage again. Nothing is observed on a device.
func (c *course) observe(sessions []*model.Session) (done func()) {
	if c.r.dev != nil {
		return func() {}
	}
	buffer := int64(c.r.p.buf.Bytes())
	stop := func() int64 { return 0 }
	if !c.s.private {
		stop = watchPrivate(func() int64 {
			n := buffer
			for _, s := range sessions {
				ps := s.Cache().PoolStats()
				n += ps.Bytes + ps.FreeBytes
			}
			return n
		})
	}
	peak := resetPeak()
	return func() {
		p := c.point
		if peak {
			p.PeakBytes = max(p.PeakBytes, peakMemory()-buffer)
		}
		p.PrivatePeakBytes = max(p.PrivatePeakBytes, stop())
	}
}

// paired reports whether the point is a compressing prefill, which is measured in
// alternation with the same one without compression.
func (c *course) paired() bool {
	return c.key.Test == TestPrefill && c.key.Depth == 0 && c.key.compressed()
}

// beside measures a compressing prefill and one without compression, in alternating
// order.
func (c *course) beside(ctx context.Context, sessions []*model.Session, sample *Sample, ready func()) (took time.Duration, err error) {
	fullFirst := len(c.point.Samples)%2 == 0
	if fullFirst {
		ready()
		ready = func() {}
		if sample.Full, err = c.full(ctx); err != nil {
			return 0, err
		}
	}
	if took, err = c.prefill(ctx, sessions, sample, ready); err != nil {
		return 0, err
	}
	if !fullFirst {
		sample.Full, err = c.full(ctx)
	}
	return took, err
}

// full returns the speed of the prefill without compression.
func (c *course) full(ctx context.Context) (float64, error) {
	o := c.opts.WithoutCompression()
	s, err := c.m.NewSession(o)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	tokens := c.tokens(c.key.Tokens)
	begin := time.Now()
	if err := s.Prefill(ctx, tokens); err != nil {
		return 0, err
	}
	return c.speed(time.Since(begin)), nil
}

// summarize computes medians over the undisturbed samples, or over all samples if
// there are none.
func (p *Point) summarize() {
	use := slices.DeleteFunc(slices.Clone(p.Samples), func(s Sample) bool { return s.Disturbed })
	p.DisturbedSamples = len(p.Samples) - len(use)
	if len(use) == 0 {
		use, p.Disturbed = p.Samples, true
	}
	column := func(f func(Sample) float64) []float64 {
		var out []float64
		for _, s := range use {
			out = append(out, f(s))
		}
		return out
	}
	speeds := column(func(s Sample) float64 { return s.Speed })
	p.Speed, p.Low, p.High = Median(speeds), slices.Min(speeds), slices.Max(speeds)
	p.Read = Median(column(func(s Sample) float64 { return s.Read }))
	p.Compute = Median(column(func(s Sample) float64 { return s.Compute }))
	p.Ranking = Median(column(func(s Sample) float64 { return s.Ranking }))
	p.Allocations = Median(column(func(s Sample) float64 { return s.Allocations }))
	if use[0].Full > 0 {
		p.VersusFull = Median(column(func(s Sample) float64 { return s.Speed / s.Full }))
	}
}

// pace returns the median of speeds, divided by the results of the probes around them
// unless a device ran the model.
func (p *Point) pace() float64 {
	var out []float64
	for _, s := range p.Samples {
		if s.Disturbed && !p.Disturbed {
			continue
		}
		probes := 1.0
		switch {
		case p.Device != "":
		case p.Test == TestPrefill:
			probes = s.PeakBefore + s.PeakAfter
		default:
			probes = s.ReadBefore + s.ReadAfter
		}
		out = append(out, s.Speed/probes)
	}
	return Median(out)
}

// compareWithFull sets the speed relative to the same point without compression, each
// divided by the machine's speed at the time, unless they were measured together.
func (p *Point) compareWithFull(all []Point) {
	if !p.compressed() || p.Error != "" || p.VersusFull > 0 {
		return
	}
	for i := range all {
		if q := &all[i]; q.Key == p.Key.full() && q.Error == "" {
			p.VersusFull = p.pace() / q.pace()
		}
	}
}

// Size formats a number of bytes.
func Size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}
