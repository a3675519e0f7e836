package grammar

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/lukv/lukv/internal/turns"
)

// Limits on what a grammar remembers between calls, and on the ways to read a text.
const (
	maxStates = 4096    // remembered states
	maxHeld   = 1 << 19 // pointers in remembered states, which are several megabytes
	maxMasks  = 256
	maxFrames = 2048 // ways to read the text so far
)

// Grammar says which tokens may come. It is safe for concurrent use.
type Grammar struct {
	v       *Vocabulary
	nodes   []node
	rules   []rule
	class   [256]uint8 // bytes of a class lead to the same places
	classes int

	lock       turns.Lock // held while somebody reads or changes the following
	frames     map[frameKey]*frame
	states     map[string]*State
	held       int // pointers in states
	serial     uint64
	generation uint64   // how often everything was forgotten
	call       uint32   // number of the call in progress
	masked     []*State // with a mask, oldest first
	start      *State
	meter      *meter // of the call in progress
}

// frame is a place in a rule, on top of the place to which the rule returns.
type frame struct {
	frameKey
	serial uint64
	depth  int
}

type frameKey struct {
	node, count int32
	below       *frame
}

// State is a place in a grammar: all ways to read the text so far. A nil State means
// that there are none.
type State struct {
	frames     []*frame // at nodes with edges
	end        bool
	generation uint64 // of the frames
	next       []transition
	call       uint32 // the last one that read a byte here
	mask       []uint64
	work       int  // that the mask takes
	empty      bool // the mask has no token
}

// transition is what follows a state for a class of bytes.
type transition struct {
	to    *State
	known bool
	call  uint32 // the last one that took it
	work  int32  // that finding it takes
}

// MayEnd reports whether the text may end here.
func (s *State) MayEnd() bool { return s != nil && s.end }

// Compile makes the grammar of a language. It ends early when ctx is done.
func Compile(ctx context.Context, v *Vocabulary, p Part) (*Grammar, error) {
	m, err := begin(ctx, maxCompileWork, errors.New("the grammar takes too much work to compile"))
	if err != nil {
		return nil, err
	}
	defer m.end()
	c := newCompiler(m)
	r := c.begin(0, -1)
	end, err := p.build(c, c.rules[r].start)
	if err != nil {
		return nil, err
	}
	c.skip(end, c.rules[r].end)
	if err := c.finish(r); err != nil {
		return nil, err
	}
	g := &Grammar{v: v, nodes: c.nodes, rules: c.rules, meter: m}
	g.classify()
	g.forget()
	if g.start, err = g.state([]*frame{g.frame(frameKey{node: g.rules[r].start})}); err != nil {
		return nil, err
	}
	return g, nil
}

// classify finds the classes of bytes that no edge tells apart.
func (g *Grammar) classify() {
	var border [257]bool
	for _, n := range g.nodes {
		for _, e := range n.edges {
			border[e.lo], border[int(e.hi)+1] = true, true
		}
	}
	k := 0
	for b := range 256 {
		if b > 0 && border[b] {
			k++
		}
		g.class[b] = uint8(k)
	}
	g.classes = k + 1
}

// forget drops what is remembered. States that somebody holds stay valid, but no longer
// refer to others: one of them would keep alive all that was ever found after it.
func (g *Grammar) forget() {
	for _, s := range g.states {
		s.next = nil
	}
	for _, s := range g.masked {
		s.next, s.mask = nil, nil
	}
	g.frames, g.states, g.masked, g.held = map[frameKey]*frame{}, map[string]*State{}, nil, 0
	g.generation++
}

// enter begins a call, whose work is bounded. If there is no error, leave ends it.
func (g *Grammar) enter(ctx context.Context) error {
	turn, err := g.lock.Begin(ctx)
	if err != nil {
		return cancelled(err)
	}
	g.meter = &meter{ctx: ctx, turn: turn, limit: maxWork, over: ErrAmbiguous}
	g.call++
	return nil
}

// leave ends a call. Everything is forgotten once it is much, not least by calls that fail.
func (g *Grammar) leave() {
	if len(g.states) >= maxStates || len(g.frames) >= 8*maxStates || g.held >= maxHeld {
		g.forget()
	}
	g.lock.End(g.meter.turn)
}

func (g *Grammar) frame(k frameKey) *frame {
	if f := g.frames[k]; f != nil {
		return f
	}
	g.serial++
	f := &frame{frameKey: k, serial: g.serial}
	if k.below != nil {
		f.depth = k.below.depth + 1
	}
	g.frames[k] = f
	return f
}

// recall makes the frames of a state that was found before everything was forgotten those
// of today, so that equal places are equal frames.
func (g *Grammar) recall(s *State) {
	if s.generation == g.generation {
		return
	}
	var today func(f *frame) *frame
	today = func(f *frame) *frame {
		if f == nil {
			return nil
		}
		k := f.frameKey
		k.below = today(k.below)
		return g.frame(k)
	}
	for i, f := range s.frames {
		s.frames[i] = today(f)
	}
	s.generation, s.next = g.generation, nil
}

// alive reports whether the rule can be finished from a node on a stack of the given
// depth.
func (g *Grammar) alive(n int32, depth int) bool {
	h := g.nodes[n].height
	return h >= 0 && depth+h <= maxStack
}

// state returns the state of some frames and of all that follow from them without a
// byte.
func (g *Grammar) state(todo []*frame) (*State, error) {
	s := &State{generation: g.generation}
	seen := map[*frame]bool{}
	for len(todo) > 0 {
		f := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[f] {
			continue
		}
		seen[f] = true
		n := &g.nodes[f.node]
		if err := g.meter.look(1 + len(n.eps) + len(n.calls)); err != nil {
			return nil, err
		}
		if len(seen) > 4*maxFrames {
			return nil, ErrAmbiguous
		}
		if len(n.edges) > 0 {
			s.frames = append(s.frames, f)
		}
		if n.end {
			if f.below == nil {
				s.end = true
			} else {
				todo = append(todo, f.below)
			}
		}
		for _, to := range n.eps {
			if g.alive(to, f.depth) {
				todo = append(todo, g.frame(frameKey{to, f.count, f.below}))
			}
		}
		for i := range n.calls {
			if called := g.called(f, &n.calls[i]); called != nil {
				todo = append(todo, called)
			}
		}
	}
	if len(s.frames) > maxFrames {
		return nil, ErrAmbiguous
	}
	if len(s.frames) == 0 && !s.end {
		return nil, nil
	}
	slices.SortFunc(s.frames, func(a, b *frame) int { return int(int64(a.serial) - int64(b.serial)) })
	key := make([]byte, 0, 8*len(s.frames)+1)
	for _, f := range s.frames {
		key = binary.LittleEndian.AppendUint64(key, f.serial)
	}
	if s.end {
		key = append(key, 1)
	}
	if old := g.states[string(key)]; old != nil {
		return old, nil
	}
	g.states[string(key)] = s
	g.held += len(s.frames)
	return s, nil
}

// called returns the frame that a call leads to; nil if it cannot be made or finished.
func (g *Grammar) called(f *frame, x *call) *frame {
	r := &g.rules[g.nodes[f.node].rule]
	count, ok := f.count, true
	if x.count {
		count, ok = counted(r, count)
	}
	start := g.rules[x.rule].start
	switch {
	case !ok || x.need && int(f.count) < r.min || !g.alive(x.to, f.depth):
	case g.bare(x.to): // nothing is left to do after it
		if g.alive(start, f.depth) {
			return g.frame(frameKey{start, 0, f.below})
		}
	case g.alive(start, f.depth+1):
		return g.frame(frameKey{start, 0, g.frame(frameKey{x.to, count, f.below})})
	}
	return nil
}

// bare reports whether a node is just an end.
func (g *Grammar) bare(n int32) bool {
	x := &g.nodes[n]
	return x.end && len(x.edges) == 0 && len(x.calls) == 0 && len(x.eps) == 0
}

// counted adds one to a count and reports whether the rule allows one more.
func counted(r *rule, count int32) (int32, bool) {
	if r.max < 0 {
		return min(count+1, int32(r.min)), true
	}
	return count + 1, int(count) < r.max
}

// step reads a byte. Work that an earlier call did, but not this one, is charged again.
func (g *Grammar) step(s *State, b byte) (*State, error) {
	g.recall(s)
	if s.call != g.call || s.next == nil {
		s.call = g.call
		if err := g.meter.look(1 + g.classes/4); err != nil {
			return nil, err
		}
	}
	if s.next == nil {
		s.next = make([]transition, g.classes)
		g.held += 3 * g.classes
	}
	t := &s.next[g.class[b]]
	if t.known {
		if t.call != g.call {
			t.call = g.call
			return t.to, g.meter.look(int(t.work))
		}
		return t.to, nil
	}
	before := g.meter.done
	to, err := g.read(s, b)
	if err != nil {
		return nil, err
	}
	*t = transition{to: to, known: true, call: g.call, work: int32(g.meter.done - before)}
	return to, nil
}

// read finds the state after a byte.
func (g *Grammar) read(s *State, b byte) (*State, error) {
	var todo []*frame
	for _, f := range s.frames {
		n := &g.nodes[f.node]
		if err := g.meter.look(1 + len(n.edges)/8); err != nil {
			return nil, err
		}
		r := &g.rules[n.rule]
		for _, e := range n.edges {
			if b < e.lo || b > e.hi || e.need && int(f.count) < r.min || !g.alive(e.to, f.depth) {
				continue
			}
			count, ok := counted(r, f.count)
			if !ok && (e.count || e.room) {
				continue
			}
			if !e.count {
				count = f.count
			}
			if err := g.meter.look(1); err != nil {
				return nil, err
			}
			todo = append(todo, g.frame(frameKey{e.to, count, f.below}))
		}
	}
	return g.state(todo)
}

// Start returns the state before the first byte.
func (g *Grammar) Start() *State { return g.start }

// Bytes reads some bytes from a state. The result is nil if they may not come there. The
// work is taken from the budget; ctx ends it early.
func (g *Grammar) Bytes(ctx context.Context, budget *Budget, s *State, b []byte) (*State, error) {
	if s == nil || len(b) == 0 {
		return s, nil
	}
	s, work, err := g.follow(ctx, s, b)
	if err == nil {
		err = budget.take(work)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// follow is Bytes without a budget; it also returns the work.
func (g *Grammar) follow(ctx context.Context, s *State, b []byte) (_ *State, work int, err error) {
	if err := g.enter(ctx); err != nil {
		return nil, 0, err
	}
	defer g.leave()
	for i := 0; i < len(b) && s != nil && err == nil; i++ {
		s, err = g.step(s, b[i])
	}
	return s, g.meter.done, err
}

// Token reads a token from a state, as Bytes does. The result is nil if the token may not
// come there.
func (g *Grammar) Token(ctx context.Context, budget *Budget, s *State, id int32) (*State, error) {
	if id < 0 || int(id) >= g.v.size || len(g.v.bytes[id]) == 0 {
		return nil, nil
	}
	return g.Bytes(ctx, budget, s, g.v.bytes[id])
}

// Mask returns a mask with a bit for every token that may come at a state, 64 per word,
// lowest first, and reports whether there is any. The mask belongs to the grammar; do
// not change it. The work is taken from the budget, also if the mask was known; ctx ends it
// early.
func (g *Grammar) Mask(ctx context.Context, budget *Budget, s *State) ([]uint64, bool, error) {
	if s == nil {
		return nil, false, nil
	}
	mask, some, work, err := g.maskOf(ctx, s)
	if err == nil {
		err = budget.take(work)
	}
	if err != nil {
		return nil, false, fmt.Errorf("mask: %w", err)
	}
	return mask, some, nil
}

// maskOf is Mask without a budget; it also returns the work.
func (g *Grammar) maskOf(ctx context.Context, s *State) (mask []uint64, some bool, work int, err error) {
	if err := g.enter(ctx); err != nil {
		return nil, false, 0, err
	}
	defer g.leave()
	err = g.mask(s)
	return s.mask, !s.empty, s.work, err
}

// mask computes the mask of a state, unless it is known.
func (g *Grammar) mask(s *State) error {
	if s.mask != nil {
		return nil
	}
	g.recall(s)
	var inside, outside []*frame
	plain := 0
	for _, f := range s.frames {
		n := &g.nodes[f.node]
		if !n.free {
			outside = append(outside, f)
			continue
		}
		inside = append(inside, f)
		room := len(g.v.plain) - 1
		if most := g.rules[n.rule].max; most >= 0 {
			room = min(room, most-int(f.count))
		}
		plain = max(plain, room)
	}
	mask := slices.Clone(g.v.plain[plain])
	for _, w := range []struct {
		frames []*frame
		trie   *trie
	}{{inside, &g.v.odd}, {outside, &g.v.all}} {
		if len(w.frames) == 0 {
			continue
		}
		if err := g.walk(&State{frames: w.frames, generation: g.generation}, w.trie, mask); err != nil {
			return err
		}
	}
	s.mask, s.empty, s.work = mask, !slices.ContainsFunc(mask, func(w uint64) bool { return w != 0 }), g.meter.done
	if g.masked = append(g.masked, s); len(g.masked) > maxMasks {
		g.masked[0].mask = nil
		g.masked = g.masked[1:]
	}
	return nil
}

// walk sets the bits of the tokens of a trie that may come.
func (g *Grammar) walk(s *State, t *trie, mask []uint64) error {
	way := make([]*State, t.depth+1)
	way[0] = s
	for i := 0; i < len(t.nodes); {
		n := &t.nodes[i]
		next, err := g.step(way[n.depth], n.b)
		if err != nil {
			return err
		}
		if next == nil {
			i = int(n.next)
			continue
		}
		way[n.depth+1] = next
		for id := n.token; id >= 0; id = t.same[id] {
			set(mask, id)
		}
		i++
	}
	return nil
}
