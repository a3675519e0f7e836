package jinja

import (
	"context"
	"time"

	"github.com/lukv/lukv/internal/turns"
)

// Limits bounds what rendering one template may use. A field that is zero or
// negative means its default. Exceeding a limit is an error for which
// errors.Is(err, ErrLimit) holds.
type Limits struct {
	Memory int // bytes of all strings, lists and objects made, each counted before it is made
	Steps  int // expressions, statements and elements, and text scanned: see scannedPerStep
	Depth  int // nesting of expressions, blocks, macro calls and values
	Range  int // elements of a range; the default is Jinja's own
}

const (
	defaultMemory = 32 << 20
	defaultSteps  = 5_000_000
	defaultDepth  = 1000
	defaultRange  = 100_000
)

func (l Limits) withDefaults() Limits {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&l.Memory, defaultMemory)
	set(&l.Steps, defaultSteps)
	set(&l.Depth, defaultDepth)
	set(&l.Range, defaultRange)
	return l
}

// What things count against Limits.Memory: their own size and that of what
// grows with them.
const (
	valueBytes   = 96  // an element of a list: its slot, and the string or number that it refers to
	bindingBytes = 48  // a name of a scope
	entryBytes   = 320 // an entry of an object: key, value and their share of the index
	lazyBytes    = 256 // the state of a loop or a lazy sequence
	scopeBytes   = 512 // what a macro's value keeps alive
	spanBytes    = 16
)

const (
	// scannedPerStep is the number of bytes of text that one step scans.
	scannedPerStep = 16
	// stepsPerCheck is the number of steps between checks of the context.
	stepsPerCheck = 1024
)

// run is one rendering of a template.
type run struct {
	ctx    context.Context
	limits Limits
	vars   *dict // the caller's variables
	now    func() time.Time

	at    pos // in the source, for errors
	out   *builder
	steps int
	check int // steps at which the context is checked next
	mem   int
	depth int

	blockEnd signal // how the body of the last blockExpr ended
}

// step counts n units of work.
func (r *run) step(n int) {
	r.steps += n
	if r.steps > r.limits.Steps {
		limitf("rendering took more than %d steps", r.limits.Steps)
	}
	if r.steps >= r.check {
		r.check = r.steps + stepsPerCheck
		if err := turns.Check(r.ctx); err != nil {
			panic(failure{err})
		}
	}
}

// work counts the scanning of n bytes of text.
func (r *run) work(n int) { r.step(n / scannedPerStep) }

// alloc counts n bytes about to be allocated.
func (r *run) alloc(n int) {
	if n < 0 || n > r.limits.Memory-r.mem {
		limitf("rendering needs more than %d bytes of strings and lists", r.limits.Memory)
	}
	r.mem += n
}

// allocTimes is alloc of n*size without overflow.
func (r *run) allocTimes(n, size int) {
	if n > 0 && size > r.limits.Memory/n {
		r.alloc(-1)
	}
	r.alloc(max(n, 0) * size)
}

func (r *run) enter() {
	r.depth++
	if r.depth > r.limits.Depth {
		limitf("nesting deeper than %d", r.limits.Depth)
	}
}

func (r *run) leave() { r.depth-- }

// capture returns what body prints.
func (r *run) capture(body func()) text {
	outer := r.out
	r.out = r.builder()
	body()
	t := r.out.text()
	r.out = outer
	return t
}

// scope holds the names assigned in one block; lookups continue in parent.
type scope struct {
	names  []binding
	parent *scope
}

type binding struct {
	name  string
	value any
}

func (s *scope) find(name string) *binding {
	for i := range s.names {
		if s.names[i].name == name {
			return &s.names[i]
		}
	}
	return nil
}

// assign sets a name in s.
func (r *run) assign(s *scope, name string, v any) {
	r.step(1 + len(s.names)/8)
	if b := s.find(name); b != nil {
		b.value = v
		return
	}
	r.alloc(bindingBytes)
	s.names = append(s.names, binding{name, v})
}

// lookup resolves a name: blocks from the inside out, the caller's variables,
// the language's globals.
func (r *run) lookup(s *scope, name string) any {
	for ; s != nil; s = s.parent {
		r.step(1 + len(s.names)/8)
		if b := s.find(name); b != nil {
			return b.value
		}
	}
	if v, ok := r.vars.get(textKey(name)); ok {
		return v
	}
	if f, ok := globals[name]; ok {
		return &method{def: f}
	}
	return &undefined{why: "'%.100s' is undefined", first: name}
}
