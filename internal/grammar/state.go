package grammar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Limits on what a grammar remembers and follows.
const (
	maxStates = 4096    // remembered states
	maxHeld   = 1 << 18 // ways to read the text so far, in all remembered states
	maxMasks  = 256
	maxFrames = 2048    // ways to read the text so far
	maxWork   = 1 << 18 // places visited for one mask
)

// ErrAmbiguous says that there are too many ways to read a text.
var ErrAmbiguous = errors.New("there are too many ways to read what was written")

// Grammar says which tokens may come. It is safe for concurrent use.
type Grammar struct {
	v       *Vocabulary
	nodes   []node
	rules   []rule
	class   [256]uint8 // bytes of a class lead to the same places
	classes int

	mu     sync.Mutex
	frames map[frameKey]*frame
	states map[string]*State
	held   int // frames of all states
	serial uint64
	masked []*State // with a mask, oldest first
	work   int      // places visited in the current call
	start  *State
	first  *frame
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
	frames []*frame // at nodes with edges
	end    bool
	next   []*State // by class
	known  []bool
	mask   []uint64
	empty  bool // the mask has no token
}

// MayEnd reports whether the text may end here.
func (s *State) MayEnd() bool { return s != nil && s.end }

// Compile makes the grammar of a language.
func Compile(v *Vocabulary, p Part) (*Grammar, error) {
	c := newCompiler()
	r := c.begin(0, -1)
	end, err := p.build(c, c.rules[r].start)
	if err != nil {
		return nil, err
	}
	c.skip(end, c.rules[r].end)
	if err := c.finish(r); err != nil {
		return nil, err
	}
	g := &Grammar{v: v, nodes: c.nodes, rules: c.rules}
	g.classify()
	g.forget()
	g.first = g.frame(frameKey{node: g.rules[r].start})
	if g.start, err = g.state([]*frame{g.first}); err != nil {
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
		s.next, s.known = nil, nil
	}
	for _, s := range g.masked {
		s.next, s.known, s.mask = nil, nil, nil
	}
	g.frames, g.states, g.masked, g.held = map[frameKey]*frame{}, map[string]*State{}, nil, 0
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

// alive reports whether the rule can be finished from a node on a stack of the given
// depth.
func (g *Grammar) alive(n int32, depth int) bool {
	h := g.nodes[n].height
	return h >= 0 && depth+h <= maxStack
}

// state returns the state of some frames and of all that follow from them without a
// byte.
func (g *Grammar) state(todo []*frame) (*State, error) {
	s := &State{}
	seen := map[*frame]bool{}
	for len(todo) > 0 {
		f := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[f] {
			continue
		}
		seen[f] = true
		if g.work++; len(seen) > 4*maxFrames || g.work > maxWork {
			return nil, ErrAmbiguous
		}
		n := &g.nodes[f.node]
		r := &g.rules[n.rule]
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
		for _, x := range n.calls {
			count, ok := f.count, true
			if x.count {
				count, ok = counted(r, count)
			}
			start := g.rules[x.rule].start
			switch {
			case !ok || x.need && int(f.count) < r.min || !g.alive(x.to, f.depth):
			case g.bare(x.to): // nothing is left to do after it
				if g.alive(start, f.depth) {
					todo = append(todo, g.frame(frameKey{start, 0, f.below}))
				}
			case g.alive(start, f.depth+1):
				todo = append(todo, g.frame(frameKey{start, 0, g.frame(frameKey{x.to, count, f.below})}))
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
	if len(g.states) >= maxStates || len(g.frames) >= 8*maxStates || g.held >= maxHeld {
		g.forget()
		for _, f := range s.frames {
			g.frames[f.frameKey] = f
		}
		if g.start != nil {
			g.start.next, g.start.known = nil, nil
		}
	}
	g.states[string(key)] = s
	g.held += len(s.frames)
	return s, nil
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

// step reads a byte.
func (g *Grammar) step(s *State, b byte) (*State, error) {
	k := g.class[b]
	if s.next == nil {
		s.next, s.known = make([]*State, g.classes), make([]bool, g.classes)
	} else if s.known[k] {
		return s.next[k], nil
	}
	var todo []*frame
	for _, f := range s.frames {
		n := &g.nodes[f.node]
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
			todo = append(todo, g.frame(frameKey{e.to, count, f.below}))
		}
	}
	next, err := g.state(todo)
	if err != nil {
		return nil, err
	}
	if s.next != nil { // unless forgotten meanwhile
		s.next[k], s.known[k] = next, true
	}
	return next, nil
}

// Start returns the state before the first byte.
func (g *Grammar) Start() *State { return g.start }

// Bytes reads some bytes from a state. The result is nil if they may not come there.
func (g *Grammar) Bytes(s *State, b []byte) (*State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.work = 0
	var err error
	for i := 0; i < len(b) && s != nil && err == nil; i++ {
		s, err = g.step(s, b[i])
	}
	return s, err
}

// Token reads a token from a state. The result is nil if it may not come there.
func (g *Grammar) Token(s *State, id int32) (*State, error) {
	if id < 0 || int(id) >= g.v.size || len(g.v.bytes[id]) == 0 {
		return nil, nil
	}
	return g.Bytes(s, g.v.bytes[id])
}

// Mask returns a mask with a bit for every token that may come at a state, 64 per word,
// lowest first, and reports whether there is any. The mask belongs to the grammar; do
// not change it.
func (g *Grammar) Mask(s *State) ([]uint64, bool, error) {
	if s == nil {
		return nil, false, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.mask != nil {
		return s.mask, !s.empty, nil
	}
	g.work = 0
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
		if err := g.walk(&State{frames: w.frames}, w.trie, mask); err != nil {
			return nil, false, fmt.Errorf("mask: %w", err)
		}
	}
	s.mask, s.empty = mask, !slices.ContainsFunc(mask, func(w uint64) bool { return w != 0 })
	if g.masked = append(g.masked, s); len(g.masked) > maxMasks {
		g.masked[0].mask = nil
		g.masked = g.masked[1:]
	}
	return mask, !s.empty, nil
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
