package jinja

import (
	"encoding/json"
	"strings"

	"github.com/lukv/lukv/internal/strictjson"
)

// filterFromJSON reads JSON. If any of the text came from the input, all strings in the value count
// as coming from there.
func filterFromJSON(r *run, a []any) any {
	t := textArg(a[0], "from_json")
	r.work(len(t.s))
	r.alloc(len(t.s))
	mark := own
	if len(t.data) > 0 {
		mark = foreign
	}
	s := strictjson.NewScanner([]byte(t.s), maxInputDepth)
	v, err := r.readJSON(s, mark)
	if err == nil {
		err = s.End()
	}
	if err != nil {
		failf("from_json: %v", err)
	}
	return v
}

// readJSON reads the value that comes next.
func (r *run) readJSON(s *strictjson.Scanner, mark func(string) text) (v any, err error) {
	r.step(1)
	r.enter()
	defer r.leave()
	str := func(what string) (text, error) {
		v, err := s.View(what)
		r.alloc(len(v))
		return mark(strings.Clone(v)), err
	}
	switch c := s.Peek(); {
	case c == '{':
		d := new(dict)
		return d, s.Object("an object", func(key string) error {
			r.alloc(len(key))
			v, err := r.readJSON(s, mark)
			r.put(d, mark(strings.Clone(key)), v)
			return err
		})
	case c == '[':
		list := []any{}
		err := s.Array("an array", func(int) error {
			r.alloc(valueBytes)
			v, err := r.readJSON(s, mark)
			list = append(list, v)
			return err
		})
		return list, err
	case c == '"':
		return str("a string")
	case c == 't' || c == 'f':
		return s.Bool()
	case s.Null():
		return nil, nil
	}
	n, err := s.Number()
	if err != nil {
		return nil, err
	}
	return inputNumber(json.Number(n), &place{key: "from_json"}), nil
}
