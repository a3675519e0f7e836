package model

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// The state of compression while decoding is stored beside the cache in a session's file.
// L layers, K KV heads, H query heads of D; n rows, T entries over the heads of a layer:
//
//	decode.passes                I64 [L]       passes since the last cut; -1: the layer is left alone
//	decode.<l>.post.positions    I32 [n]       of buffered queries after RoPE; ascending
//	decode.<l>.post.rows         F32 [n, H*D]
//	decode.<l>.pre.positions     I32 [n]       of those before RoPE
//	decode.<l>.pre.rows          F32 [n, H*D]
//	decode.<l>.lens              I64 [K]       entries of each head
//	decode.<l>.seen              I64 [T]       query rows that could see an entry
//	decode.<l>.sums              F64 [T]       attention that it received
//
// Empty tensors are left out.

// continues reports whether c compresses while decoding exactly as a saved policy did.
func (c *compression) continues(saved *lukv.Policy) bool {
	if c == nil || c.decode == nil || saved == nil {
		return false
	}
	have, err := json.Marshal(c.plan.Policy().Decode)
	want, wrong := json.Marshal(saved.Decode)
	return err == nil && wrong == nil && string(have) == string(want)
}

// decodeTensors returns the state as tensors.
func (s *Session) decodeTensors() []safetensors.Named {
	if s.comp == nil || s.comp.decode == nil {
		return nil
	}
	passes := make([]int64, len(s.comp.decode))
	var out []safetensors.Named
	for at, l := range s.comp.decode {
		if passes[at] = -1; l == nil {
			continue
		}
		st := l.State()
		passes[at] = int64(st.Passes)
		add := func(name string, t tensor.Tensor) {
			out = append(out, safetensors.Named{Name: fmt.Sprintf("decode.%d.%s", at, name), Tensor: t})
		}
		for _, q := range []struct {
			name string
			rows lukv.QueryRows
		}{{"post", st.Post}, {"pre", st.Pre}} {
			if n := len(q.rows.Positions); n > 0 {
				x := tensor.Make(tensor.I32, n)
				for i, p := range q.rows.Positions {
					binary.LittleEndian.PutUint32(x.Data[4*i:], uint32(p))
				}
				add(q.name+".positions", x)
				add(q.name+".rows", tensor.FromF32s(tensor.F32, q.rows.Rows, n, len(q.rows.Rows)/n))
			}
		}
		if st.Sums != nil {
			lens := make([]int64, len(st.Sums))
			for h := range lens {
				lens[h] = int64(len(st.Sums[h]))
			}
			sums, seen := slices.Concat(st.Sums...), slices.Concat(st.Seen...)
			x := tensor.Make(tensor.F64, len(sums))
			for i, v := range sums {
				binary.LittleEndian.PutUint64(x.Data[8*i:], math.Float64bits(v))
			}
			add("lens", tensor.FromI64s(lens, len(lens)))
			add("seen", tensor.FromI64s(seen, len(seen)))
			add("sums", x)
		}
	}
	return append(out, safetensors.Named{Name: "decode.passes", Tensor: tensor.FromI64s(passes, len(passes))})
}

// restoreDecode restores the state from the tensors of the file that the session's
// cache came from.
func (s *Session) restoreDecode(extra map[string]tensor.Tensor) error {
	passes := extra["decode.passes"]
	if passes.Type != tensor.I64 || !passes.HasShape(len(s.comp.decode)) {
		return fmt.Errorf("tensor \"decode.passes\": found %v, expected I64[%d]", passes, len(s.comp.decode))
	}
	lens := make([]int, s.m.cfg.KVHeads)
	for at, n := range passes.Int64s(nil) {
		l := s.comp.decode[at]
		if (l == nil) != (n == -1) {
			return fmt.Errorf("layer %d: found %d passes, but its sliding window says otherwise", at, n)
		}
		if l == nil {
			continue
		}
		st, err := savedDecodeState(extra, at, n)
		if err == nil {
			for h := range lens {
				lens[h] = s.cache.Len(at, h)
			}
			err = l.Restore(st, lens, s.pos)
		}
		if err != nil {
			return fmt.Errorf("layer %d: %w", at, err)
		}
	}
	return nil
}

// savedDecodeState reads the state of a layer.
func savedDecodeState(extra map[string]tensor.Tensor, at int, passes int64) (st lukv.DecodeState, err error) {
	if passes < 0 || passes > math.MaxInt32 {
		return st, fmt.Errorf("found %d passes since the last cut", passes)
	}
	st.Passes = int(passes)
	get := func(name string, typ tensor.Type, dims int) (t tensor.Tensor, ok bool) {
		name = fmt.Sprintf("decode.%d.%s", at, name)
		if t, ok = extra[name]; ok && err == nil && (t.Type != typ || len(t.Shape) != dims) {
			err = fmt.Errorf("tensor %q: found %v, expected %v with %d dimensions", name, t, typ, dims)
		}
		return t, ok && err == nil
	}
	for name, q := range map[string]*lukv.QueryRows{"post": &st.Post, "pre": &st.Pre} {
		if t, ok := get(name+".positions", tensor.I32, 1); ok {
			for i := range t.Len() {
				q.Positions = append(q.Positions, int32(binary.LittleEndian.Uint32(t.Data[4*i:])))
			}
		}
		if t, ok := get(name+".rows", tensor.F32, 2); ok {
			q.Rows = t.Float32s(nil)
		}
	}
	lens, ok := get("lens", tensor.I64, 1)
	seen, _ := get("seen", tensor.I64, 1)
	sums, _ := get("sums", tensor.F64, 1)
	if err != nil || !ok {
		return st, err
	}
	if seen.Len() != sums.Len() {
		return st, fmt.Errorf("accumulated attention: found %d sums of %d entries", sums.Len(), seen.Len())
	}
	all, from := seen.Int64s(nil), 0
	for h, n := range lens.Int64s(nil) {
		if n < 0 || n > int64(len(all)-from) {
			return st, fmt.Errorf("accumulated attention of head %d: found %d entries, %d are left", h, n, len(all)-from)
		}
		to := from + int(n)
		row := make([]float64, 0, n)
		for i := from; i < to; i++ {
			row = append(row, math.Float64frombits(binary.LittleEndian.Uint64(sums.Data[8*i:])))
		}
		st.Sums, st.Seen = append(st.Sums, row), append(st.Seen, all[from:to])
		from = to
	}
	if from != len(all) {
		return st, fmt.Errorf("accumulated attention: found %d entries, expected %d", len(all), from)
	}
	return st, nil
}
