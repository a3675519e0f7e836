package jinja

import (
	"context"
	"time"
)

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct {
	name string
	body []stmt
}

// Name returns the name given to Parse.
func (t *Template) Name() string { return t.name }

// Options controls how a template runs. The zero value is ready to use.
type Options struct {
	// Limits bounds the run; zero fields have defaults.
	Limits Limits
	// Now is the time that strftime_now formats, in the zone it should show.
	// Default time.Now.
	Now func() time.Time
}

// Result is a rendered text.
type Result struct {
	Text string
	// Data lists the ranges of Text that came from the variables, except
	// Trusted ones: ascending, disjoint and not empty.
	Data []Span
}

// Render runs the template over variables and nothing else. A nil value is None;
// an absent name is undefined. Render reads vars and keeps nothing of it. Errors
// are *Error.
func (t *Template) Render(ctx context.Context, vars Mapping, opt Options) (result Result, err error) {
	r := newRun(ctx, opt)
	defer rescue(t.name, &r.at, &err)
	r.step(0) // checks ctx
	if vars != nil {
		r.setVars(vars)
	}
	r.exec(t.body, new(scope))
	out := r.out.text()
	return Result{Text: out.s, Data: out.data}, nil
}

func newRun(ctx context.Context, opt Options) *run {
	r := &run{ctx: ctx, limits: opt.Limits.withDefaults(), now: opt.Now}
	if r.now == nil {
		r.now = time.Now
	}
	r.out = r.builder()
	return r
}

// setVars converts and stores the caller's variables.
func (r *run) setVars(vars Mapping) {
	r.vars = new(dict)
	for name, v := range vars.All() {
		r.put(r.vars, own(name), r.input(v, &place{key: name}))
	}
}
