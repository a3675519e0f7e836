package chat

import (
	"context"
	"strings"
	"time"
)

// Limits bounds what rendering one template may use. A field that is zero or
// negative means its default. Going beyond a limit is an error for which
// errors.Is(err, ErrLimit) holds.
type Limits struct {
	// Output is the longest text, final or captured, in bytes. Default 64 MiB.
	Output int
	// Memory is the sum of the sizes of all strings and lists made while
	// rendering, in bytes: it bounds repetition and padding of strings before
	// they are made. Default 512 MiB.
	Memory int
	// Steps counts evaluated expressions and statements, elements visited, and
	// text scanned (one step per 256 bytes). Default 20 million, a few seconds.
	Steps int
	// Depth is how deep expressions, blocks, macro calls and values may nest
	// while rendering. Default 2000.
	Depth int
	// Range is the most elements a range may have. Default 100000, Jinja's own.
	Range int
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&l.Output, 64<<20)
	set(&l.Memory, 512<<20)
	set(&l.Steps, 20_000_000)
	set(&l.Depth, 2000)
	set(&l.Range, 100_000)
	return l
}

const (
	// valueBytes is what one element of a list counts against Limits.Memory: two
	// words in the list, two of a string elsewhere, and the list's growth.
	valueBytes = 48
	// bytesPerStep is how much text one step scans.
	bytesPerStep = 256
	// stepsPerCheck is how often the context is looked at.
	stepsPerCheck = 1024
)

// run is one rendering of a template.
type run struct {
	ctx    context.Context
	limits Limits
	vars   *Object // the caller's variables
	root   *scope
	now    func() time.Time

	line  int // of the source, for errors
	out   *strings.Builder
	steps int
	check int // steps at which the context is looked at next
	mem   int
	depth int
}

// step counts n units of work.
func (r *run) step(n int) {
	r.steps += n
	if r.steps > r.limits.Steps {
		limitf("rendering took more than %d steps", r.limits.Steps)
	}
	if r.steps >= r.check {
		r.check = r.steps + stepsPerCheck
		if err := r.ctx.Err(); err != nil {
			panic(failure{err})
		}
	}
}

// work counts the scanning of n bytes of text.
func (r *run) work(n int) { r.step(n / bytesPerStep) }

// alloc counts n bytes about to be allocated.
func (r *run) alloc(n int) {
	if n < 0 || n > r.limits.Memory-r.mem {
		limitf("rendering needs more than %d bytes of strings and lists", r.limits.Memory)
	}
	r.mem += n
	r.work(n)
}

// allocTimes is alloc of n*size without overflow.
func (r *run) allocTimes(n, size int) {
	if n > 0 && size > r.limits.Memory/n {
		r.alloc(-1)
	}
	r.alloc(max(n, 0) * size)
}

// text counts a string just made and returns it.
func (r *run) text(s string) string {
	r.alloc(len(s))
	return s
}

func (r *run) enter() {
	r.depth++
	if r.depth > r.limits.Depth {
		limitf("nesting deeper than %d", r.limits.Depth)
	}
}

func (r *run) leave() { r.depth-- }

// emit appends to the current output.
func (r *run) emit(s string) {
	if len(s) > r.limits.Output-r.out.Len() {
		limitf("output longer than %d bytes", r.limits.Output)
	}
	r.alloc(len(s))
	r.out.WriteString(s)
}

// capture returns what body emits.
func (r *run) capture(body func()) string {
	outer := r.out
	r.out = new(strings.Builder)
	body()
	s := r.out.String()
	r.out = outer
	return s
}

// scope holds the names assigned in one block; reads go on in parent.
type scope struct {
	names  map[string]any
	parent *scope
}

func (s *scope) set(name string, v any) {
	if s.names == nil {
		s.names = make(map[string]any)
	}
	s.names[name] = v
}

// lookup resolves a name: blocks from the inside out, the caller's variables,
// the language's globals.
func (r *run) lookup(s *scope, name string) any {
	for ; s != nil; s = s.parent {
		if v, ok := s.names[name]; ok {
			return v
		}
		r.step(1)
	}
	if v, ok := r.vars.Get(name); ok {
		return v
	}
	if f, ok := globals[name]; ok {
		return &function{def: f}
	}
	return &undefined{why: "'" + name + "' is undefined"}
}
