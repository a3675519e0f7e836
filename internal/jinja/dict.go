package jinja

import "math"

// dict is an object that keeps the order of its keys: the order in which they
// were first set. A nil *dict reads as empty.
type dict struct {
	keys, vals []any
	hashes     []hashKey
	index      map[hashKey]int // nil while the keys are few
}

// fewKeys is the number of keys up to which a linear search is faster.
const fewKeys = 8

// hashKey identifies a key: equal values have equal hashKeys, so 1, 1.0 and true
// are one key, as in Python.
type hashKey struct {
	kind byte
	n    int64
	s    string
}

func textKey(s string) hashKey { return hashKey{kind: 's', s: s} }

func (d *dict) len() int {
	if d == nil {
		return 0
	}
	return len(d.keys)
}

func (d *dict) find(h hashKey) int {
	if d == nil {
		return -1
	}
	if d.index != nil {
		if i, ok := d.index[h]; ok {
			return i
		}
		return -1
	}
	for i := range d.hashes {
		if d.hashes[i] == h {
			return i
		}
	}
	return -1
}

func (d *dict) get(h hashKey) (any, bool) {
	if i := d.find(h); i >= 0 {
		return d.vals[i], true
	}
	return nil, false
}

// put sets a key in a dict that is being made.
func (r *run) put(d *dict, key, value any) {
	h := r.hash(key)
	if i := d.find(h); i >= 0 {
		d.vals[i] = value
		return
	}
	r.alloc(entryBytes)
	d.keys, d.vals, d.hashes = append(d.keys, key), append(d.vals, value), append(d.hashes, h)
	if d.index == nil && len(d.keys) <= fewKeys {
		return
	}
	if d.index == nil {
		d.index = make(map[hashKey]int, 2*fewKeys)
		for i, h := range d.hashes {
			d.index[h] = i
		}
	}
	d.index[h] = len(d.keys) - 1
}

// items returns a list of the pairs of d.
func (r *run) items(d *dict) []any {
	r.step(d.len())
	r.allocTimes(d.len(), 2*valueBytes)
	out := make([]any, d.len())
	for i := range out {
		out[i] = tuple{[]any{d.keys[i], d.vals[i]}}
	}
	return out
}

// hash returns v's hashKey; it fails for values that cannot be a key.
func (r *run) hash(v any) hashKey {
	h, ok := r.tryHash(v)
	if !ok {
		failf("unhashable type: '%s'", typeName(v))
	}
	return h
}

// tryHash is hash with ok false for values that cannot be a key.
func (r *run) tryHash(v any) (h hashKey, ok bool) {
	r.step(1)
	switch v := v.(type) {
	case text:
		r.work(len(v.s))
		return textKey(v.s), true
	case nil:
		return hashKey{kind: 'n'}, true
	case bool, int64:
		i, _ := toInt64(v)
		return hashKey{kind: 'i', n: i}, true
	case wide:
		return hashKey{kind: 'w', s: string(v)}, true
	case float64:
		if i, ok := wholeInt(v); ok {
			return hashKey{kind: 'i', n: i}, true // 1.0 is the key 1
		}
		return hashKey{kind: 'f', n: int64(math.Float64bits(v))}, true
	case tuple:
		unsupportedf("a tuple as a key")
	case *undefined:
		return hashKey{kind: 'u'}, true
	}
	return hashKey{}, false
}
