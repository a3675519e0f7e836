package jinja

import (
	"fmt"
	"strings"
)

func defineGlobals() []*builtin {
	return []*builtin{
		define("range", "*args", globalRange),
		define("dict", "*args **kwargs", func(r *run, a []any) any { return r.makeDict("dict", a) }),
		define("namespace", "*args **kwargs", func(r *run, a []any) any {
			return &namespace{r.makeDict("namespace", a)}
		}),
		define("raise_exception", "message", func(r *run, a []any) any {
			panic(failure{&RaisedError{Message: r.show(a[0]).s}})
		}),
		define("strftime_now", "format", func(r *run, a []any) any {
			return r.strftime(textArg(a[0], "strftime_now"))
		}),
	}
}

func globalRange(r *run, a []any) any {
	args := a[0].([]any)
	if len(args) < 1 || len(args) > 3 {
		failf("range() takes 1 to 3 arguments, found %d", len(args))
	}
	n := make([]int64, len(args))
	for i, v := range args {
		n[i] = int64(intArg(v, "range()"))
	}
	rg := &rangeValue{step: 1}
	switch len(n) {
	case 1:
		rg.stop = n[0]
	case 2:
		rg.start, rg.stop = n[0], n[1]
	case 3:
		rg.start, rg.stop, rg.step = n[0], n[1], n[2]
	}
	if rg.step == 0 {
		failf("range(): the step must not be zero")
	}
	// As unsigned numbers the span and the step cannot overflow.
	var span, step uint64
	if rg.step > 0 && rg.stop > rg.start {
		span, step = uint64(rg.stop)-uint64(rg.start), uint64(rg.step)
	} else if rg.step < 0 && rg.stop < rg.start {
		span, step = uint64(rg.start)-uint64(rg.stop), -uint64(rg.step)
	}
	if span > 0 {
		count := (span-1)/step + 1
		if count > uint64(r.limits.Range) {
			limitf("range() of %d elements, at most %d allowed", count, r.limits.Range)
		}
		rg.n = int64(count)
	}
	return rg
}

// makeDict is dict(*args, **kwargs): from an object or pairs, then from named
// arguments.
func (r *run) makeDict(what string, a []any) *dict {
	args, named := a[0].([]any), a[1].([]argument)
	if len(args) > 1 {
		failf("%s() takes at most 1 argument, found %d", what, len(args))
	}
	d := new(dict)
	if len(args) == 1 {
		over := args[0]
		if o, ok := over.(*dict); ok {
			over = r.items(o)
		}
		it := r.iter(over)
		for e, ok := it(); ok; e, ok = it() {
			pair := r.list(e)
			if len(pair) != 2 {
				failf("%s(): found an element of length %d, expected pairs", what, len(pair))
			}
			r.put(d, pair[0], pair[1])
		}
	}
	for _, a := range named {
		r.put(d, own(a.name), a.value)
	}
	return d
}

// directives are the strftime directives that strftime_now supports, as
// layouts of package time; a leading "-" omits the padding.
var directives = map[string]string{
	"a": "Mon", "A": "Monday", "b": "Jan", "B": "January", "h": "Jan", "p": "PM",
	"d": "02", "-d": "2", "e": "_2", "m": "01", "-m": "1", "y": "06", "Y": "2006", "j": "002",
	"H": "15", "I": "03", "-I": "3", "M": "04", "-M": "4", "S": "05", "-S": "5",
	"F": "2006-01-02", "T": "15:04:05", "R": "15:04", "D": "01/02/06",
}

// cutDirective splits a format after its first directive: the text before it,
// its name and the rest. The name is "" if there is none.
func cutDirective(format string) (before, name, rest string) {
	before, rest, found := strings.Cut(format, "%")
	if !found {
		return before, "", ""
	}
	n := min(1, len(rest))
	if strings.HasPrefix(rest, "-") {
		n = min(2, len(rest))
	}
	if n == 0 {
		return before, "%", "" // a lone % at the end stands for itself
	}
	return before, rest[:n], rest[n:]
}

// unknownDirective returns the first directive of a format that strftime_now
// does not support, or "".
func unknownDirective(format string) string {
	for format != "" {
		var name string
		_, name, format = cutDirective(format)
		if _, ok := directives[name]; !ok && name != "" && name != "%" && name != "-H" {
			return "%" + name
		}
	}
	return ""
}

// strftime formats the time of the run as C's strftime does in the C locale. If
// any part of the format is data, all of the literal text in the result is.
func (r *run) strftime(t text) text {
	format, data := t.s, len(t.data) > 0
	r.work(len(format))
	if bad := unknownDirective(format); bad != "" {
		unsupportedf("strftime_now directive '%s'", bad)
	}
	now := r.now()
	b := r.builder()
	for format != "" {
		var before, name string
		before, name, format = cutDirective(format)
		r.step(1)
		b.put(before, data)
		switch name {
		case "":
		case "%":
			b.put("%", data)
		case "-H":
			b.put(fmt.Sprint(now.Hour()), false)
		default:
			b.put(now.Format(directives[name]), false)
		}
	}
	return b.text()
}
