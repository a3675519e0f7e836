package conformance

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

func dot(x, y []float32) (s float64) {
	for i, v := range x {
		s += float64(v) * float64(y[i])
	}
	return s
}

func length(x []float32) float64 { return math.Sqrt(dot(x, x)) }

// normOf is the sum of absolute values if norm is 1, the length if it is 2.
func normOf(x []float32, norm int) (sum float64) {
	if norm == 2 {
		return length(x)
	}
	for _, v := range x {
		sum += math.Abs(float64(v))
	}
	return sum
}

// reductions computes every reduction over the entries of ragged caches.
func (s *suite) reductions(t *testing.T) {
	nth := 0
	for _, c := range s.attentionCases() {
		uneven := c.l.HeadDim%8 != 0 // halves of a key in the same eight elements
		if c.bf16 || c.window > 0 || len(c.entries) > 1 && !uneven {
			continue
		}
		t.Run(fmt.Sprintf("%v,dim%d,heads%d/%d", typesOf(c.l), c.l.HeadDim, c.heads, c.kv), func(t *testing.T) {
			r := newRig(t, s.d)
			p := r.newPass(c)
			of, _, _, _, _ := p.start(r)
			a := s.reducer(t, of)
			if uneven {
				s.unrotated(t, p, a, 0, 0)
				return
			}
			s.reduce(t, r, p, a, nth)
			nth++
		})
	}
}

func (s *suite) reduce(t *testing.T, r *rig, p *pass, a kernels.Reducer, nth int) {
	ctx, heads, group, d := t.Context(), p.caches[0].heads, p.heads/p.kv, p.l.HeadDim
	entries := make([][][2][]float32, len(heads)) // keys and values
	for h, x := range heads {
		for e := range x.entries {
			key, value := x.entry(p.l, e)
			entries[h] = append(entries[h], [2][]float32{key, value})
		}
	}
	// each compares results per head, or per query head, with those of every entry.
	each := func(what string, got [][]float32, err error, queries bool, want func(q int, key, value []float32) (x, bound float64)) {
		t.Helper()
		ok(t, err)
		per := 1
		if queries {
			per = group
		}
		if len(got) != len(heads)*per {
			t.Fatalf("%s: found %d rows, expected %d", what, len(got), len(heads)*per)
		}
		for q, row := range got {
			x := heads[q/per]
			all, bounds := make([]float64, x.entries), make([]float64, x.entries)
			for e, kv := range entries[q/per] {
				all[e], bounds[e] = want(q, kv[0], kv[1])
			}
			near(t, fmt.Sprintf("%s, row %d", what, q), all, row, func(i int) float64 { return bounds[i] })
		}
	}
	norms := func(x float64) (float64, float64) { return x, 2e-6*x + 1e-30 }
	got, err := a.KeyNorms(ctx, 1, 0)
	each("key norms", got, err, false, func(_ int, key, _ []float32) (float64, float64) { return norms(length(key)) })
	got, err = a.ValueNorms(ctx, 1, 0)
	each("value norms", got, err, false, func(_ int, _, value []float32) (float64, float64) { return norms(length(value)) })

	means := make([][]float32, len(heads))
	for h, x := range heads {
		sum := make([]float64, d)
		for _, kv := range entries[h] {
			n := length(kv[0])
			for i, v := range kv[0] {
				sum[i] += float64(v) / n
			}
		}
		for _, v := range sum {
			means[h] = append(means[h], float32(v/float64(max(x.entries, 1))))
		}
	}
	got, err = a.MeanCosines(ctx, 1, 0)
	each("mean cosines", got, err, false, func(h int, key, _ []float32) (float64, float64) {
		return dot(key, means[h]) / (length(key) * length(means[h])), 1e-5
	})

	// Every type of weights is tried with the first kind of pages, floats and one further
	// type with each other.
	width := p.heads * d
	types := slices.DeleteFunc(slices.Clone(s.types), func(wt tensor.Type) bool { return width%wt.Block() != 0 })
	if nth > 0 {
		types = []tensor.Type{types[0], types[nth%len(types)]}
	}
	for _, wt := range types {
		projection := r.weights("projection", testnum.Plain, wt, 37, width, false)
		w, wide := projection.W, projection.wide
		for norm := 1; norm <= 2; norm++ {
			got, err = a.OutputNorms(ctx, 1, 0, w, norm)
			each(fmt.Sprintf("output norms %d of %v", norm, wt), got, err, true, func(q int, _, value []float32) (float64, float64) {
				var y, size []float32
				for row := range slices.Chunk(wide, width) {
					sum, all := 0.0, 0.0
					for i, w := range row[q*d : (q+1)*d] {
						term := float64(w) * float64(value[i])
						sum, all = sum+term, all+math.Abs(term)
					}
					y, size = append(y, float32(sum)), append(size, float32(all))
				}
				return normOf(y, norm), max(1e-5*normOf(y, norm), 1e-6*normOf(size, norm))
			})
		}
	}

	linear, form := normal(random("linear"), width), normal(random("form"), width*d)
	for i := range form {
		if i%d < i/d%d {
			form[i] = 0
		}
	}
	for _, f := range [][]float32{nil, form} {
		got, err = a.QuadraticForm(ctx, 1, 0, linear, f)
		each("quadratic form", got, err, true, func(q int, key, _ []float32) (sum, size float64) {
			for i, x := range key {
				terms := []float64{float64(x) * float64(linear[q*d+i])}
				for j := i; f != nil && j < d; j++ {
					terms = append(terms, float64(x)*float64(f[(q*d+i)*d+j])*float64(key[j]))
				}
				for _, v := range terms {
					sum, size = sum+v, size+math.Abs(v)
				}
			}
			return sum, 1e-5 * size
		})
	}
	s.unrotated(t, p, a, 0, 0)
	keys, frequencies := make([]float32, len(heads)*d), make([]float64, d/2)
	for name, call := range map[string]func() ([][]float32, error){
		"distances": func() ([][]float32, error) { return a.KeyDistances(ctx, 1, 0, frequencies[1:]) },
		"keys":      func() ([][]float32, error) { return a.LinearForms(ctx, 1, 0, keys[1:], keys, frequencies) },
		"values":    func() ([][]float32, error) { return a.LinearForms(ctx, 1, 0, keys, keys[1:], frequencies) },
		"turns":     func() ([][]float32, error) { return a.LinearForms(ctx, 1, 0, keys, keys, frequencies[1:]) },
		"layer":     func() ([][]float32, error) { return a.KeyNorms(ctx, 2, 0) },
		"sequence":  func() ([][]float32, error) { return a.KeyNorms(ctx, 1, len(p.rows)) },
		"norm":      func() ([][]float32, error) { return a.OutputNorms(ctx, 1, 0, nil, 1) },
		"linear":    func() ([][]float32, error) { return a.QuadraticForm(ctx, 1, 0, linear[1:], nil) },
		"form":      func() ([][]float32, error) { return a.QuadraticForm(ctx, 1, 0, linear, form[1:]) },
		"projection": func() ([][]float32, error) {
			return a.OutputNorms(ctx, 1, 0, r.matrix(kernels.F32Matrix(make([]float32, 12), 3, 4)), 1)
		},
	} {
		if _, err := call(); err == nil {
			t.Errorf("%s: a reduction with arguments that do not fit gives no error", name)
		}
	}
}

// unrotated computes the reductions of keys whose rotation is undone, by the positions in the
// pages: more entries were appended to each head than the attention case counts.
func (s *suite) unrotated(t *testing.T, p *pass, a kernels.Reducer, seq, more int) {
	t.Helper()
	d, heads := p.l.HeadDim, p.caches[seq].heads
	frequencies := make([]float64, d/2)
	for i := range frequencies {
		frequencies[i] = math.Pow(1000, -float64(2*i)/float64(d))
	}
	frequencies[0] = 1000 // angles as at positions of hundreds of thousands
	keys, values := normal(random("keys"), len(heads)*d), normal(random("values"), len(heads)*d)
	distances, err := a.KeyDistances(t.Context(), 1, seq, frequencies)
	ok(t, err)
	forms, err := a.LinearForms(t.Context(), 1, seq, keys, values, frequencies)
	ok(t, err)
	if len(distances) != len(heads) || len(forms) != len(heads) {
		t.Fatalf("found %d and %d rows, expected %d", len(distances), len(forms), len(heads))
	}
	for h, x := range heads {
		n := x.entries + more
		mean, unrotated, square := make([]float64, d), make([][]float64, n), 0.0
		form, formBound := make([]float64, n), make([]float64, n)
		for e := range n {
			key, value := x.entry(p.l, e)
			k := make([]float64, d)
			for i, f := range frequencies {
				sin, cos := math.Sincos(float64(x.position(p.l, e)) * f)
				u, v := float64(key[i]), float64(key[d/2+i])
				k[i], k[d/2+i] = u*cos+v*sin, v*cos-u*sin
			}
			unrotated[e] = k
			for i := range k {
				mean[i] += k[i] / float64(n)
				square = max(square, dot(key, key))
				a, b := k[i]*float64(keys[h*d+i]), float64(value[i])*float64(values[h*d+i])
				form[e] += a + b
				formBound[e] += 1e-5 * math.Abs(b)
			}
			// The terms of a pair are turned into each other.
			formBound[e] += 1e-5 * length(key) * length(keys[h*d:(h+1)*d])
		}
		distance := make([]float64, n)
		for e, k := range unrotated {
			for i := range k {
				distance[e] += (k[i] - mean[i]) * (k[i] - mean[i])
			}
		}
		near(t, fmt.Sprintf("key distances of head %d", h), distance, distances[h], func(int) float64 { return 1e-5 * square })
		near(t, fmt.Sprintf("linear forms of head %d", h), form, forms[h], func(i int) float64 { return formBound[i] })
	}
}

// statistics accumulates moments of queries and sums of attention over rows that are divided
// in several ways.
func (s *suite) statistics(t *testing.T) {
	c := attentionCase{heads: 6, kv: 2, rows: []int{3, 40}, entries: [][]int{{5, 0}, {270, 33}}}
	for _, types := range s.pageTypes {
		if c.l = types.layout(16, 16); c.l.Type != tensor.F32 && c.l.Type != tensor.I8 {
			continue
		}
		if c.l.Type == tensor.I8 {
			c.turning = still // keys have the same bits everywhere
		}
		for _, c.cap = range []float32{0, 1.5} {
			s.statisticsOf(t, c)
		}
	}
}

func (s *suite) statisticsOf(t *testing.T, c attentionCase) {
	const sequence, n, from = 1, 40, 3 // rows of the second sequence
	var firstMeans, firstSums []float32
	for _, chunk := range []int{n, 1, 7} {
		r := newRig(t, s.d)
		p := r.newPass(c)
		c.window = 0
		of, q, k, v, turns := p.start(r)
		a := s.reducer(t, of)
		moments, err := a.Moments(true)
		ok(t, err)
		sums, err := a.ColumnSums(400)
		ok(t, err)
		out := r.rows(tensor.F32, p.n, p.heads*16, nil)
		parts := func(record func(first, n int)) {
			for at := 0; at < n; at += chunk {
				record(from+at, min(chunk, n-at))
			}
		}
		r.run(func(e kernels.Encoder) {
			parts(func(first, n int) { e.(kernels.StatisticsEncoder).Moments(moments, q, first, n) })
			e.RopeAppend(a, 1, q, k, v, turns)
			e.Attend(a, 1, out, q, true)
			parts(func(first, n int) { e.(kernels.StatisticsEncoder).ColumnSums(sums, a, 1, sequence, q, first, n) })
		})
		means := s.sameMoments(t, p, a, moments, from, n)
		for h, x := range p.caches[sequence].heads { // with the rows that were appended
			a.SetHead(1, sequence, h, x.table, x.entries+n, 0)
		}
		all := s.sameSums(t, p, a, sums, sequence, from, n)
		if firstMeans == nil {
			firstMeans, firstSums = means, all
			s.unrotated(t, p, a, sequence, n) // with positions that are not slots
		}
		testnum.SameBits(t, fmt.Sprintf("means of %d rows at a time", chunk), firstMeans, means)
		testnum.SameBits(t, fmt.Sprintf("sums of %d rows at a time", chunk), firstSums, all)
		moments.Free()
		moments.Free()
		if _, err := a.ReadMoments(t.Context(), moments, 0, make([]float64, 16), nil); err == nil {
			t.Error("statistics that were freed can be read")
		}
		short, err := a.ColumnSums(100)
		ok(t, err)
		if _, err := a.ReadColumnSums(t.Context(), short, 1, sequence); err == nil {
			t.Error("sums of 100 entries can be read for 310")
		}
	}
}

// sameMoments compares moments with those of rows [from, from+n) and returns the means.
func (s *suite) sameMoments(t *testing.T, p *pass, a kernels.Reducer, m kernels.Moments, from, n int) (means []float32) {
	d := p.l.HeadDim
	mean, cov := make([]float64, d), make([]float64, d*d)
	for h := range p.heads {
		rows, err := a.ReadMoments(t.Context(), m, h, mean, cov)
		ok(t, err)
		if rows != n {
			t.Fatalf("found %d rows, expected %d", rows, n)
		}
		at := func(i, c int) float64 { return float64(p.q[((from+i)*p.heads+h)*d+c]) }
		for i := range d {
			want := 0.0
			for r := range n {
				want += at(r, i) / float64(n)
			}
			if math.Abs(mean[i]-want) > 1e-6 {
				t.Fatalf("mean %d of head %d: found %g, expected %g", i, h, mean[i], want)
			}
			means = append(means, float32(mean[i]))
			for j := range d {
				v := 0.0
				for r := range n {
					v += (at(r, i) - mean[i]) * (at(r, j) - mean[j]) / float64(n)
				}
				if math.Abs(cov[i*d+j]-v) > 2e-6 {
					t.Fatalf("covariance %d, %d of head %d: found %g, expected %g", i, j, h, cov[i*d+j], v)
				}
			}
		}
	}
	return means
}

// sameSums compares the attention that entries have received from rows [from, from+n), which
// the cache now holds.
func (s *suite) sameSums(t *testing.T, p *pass, a kernels.Reducer, sums kernels.ColumnSums, seq, from, n int) (all []float32) {
	q, _, _ := p.reference()
	got, err := a.ReadColumnSums(t.Context(), sums, 1, seq)
	ok(t, err)
	d, bound := p.l.HeadDim, 1e-4
	if p.l.Type == tensor.I8 {
		bound = 1e-3 // queries may be rounded to 15 bits
	}
	for h, row := range got {
		x := p.caches[seq].heads[h/(p.heads/p.kv)]
		want := make([]float64, x.entries+n)
		for i := range n {
			query := q[((from+i)*p.heads+h)*d:][:d]
			z, sum := make([]float64, x.entries+i+1), 0.0
			for e := range z {
				key, _ := x.entry(p.l, e)
				z[e] = dot(query, key) / math.Sqrt(float64(d))
				if limit := float64(p.cap) * math.Ln2; limit > 0 {
					z[e] = limit * math.Tanh(z[e]/limit)
				}
				z[e] = math.Exp(z[e])
				sum += z[e]
			}
			for e := range z {
				want[e] += z[e] / sum
			}
		}
		near(t, fmt.Sprintf("column sums of head %d", h), want, row, func(i int) float64 { return bound*want[i] + 1e-7 })
		all = append(all, row...)
	}
	return all
}
