package model

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// Trace is what the compression of a span of tokens decided, and why; see
// [SessionOptions.Trace]. L layers, K KV heads, T tokens of the span.
type Trace struct {
	Model     string       // Model.ID
	Precision Precision    // of the computation
	Policy    *lukv.Policy // with every parameter written out
	Span      Span

	// Budgets, [L][K], are the entries of the span that each head was allowed. The row
	// of a layer that stays as it is, such as one with a sliding window, is nil, as it
	// is in Positions and Scores.
	Budgets [][]int

	// Positions, [L][K], are the positions of the span's tokens that each head
	// kept, ascending, before any renumbering by the policy.
	Positions [][][]int32

	// Scores, [L][K][T], are those by which a head's entries were selected; element i
	// is for position Span.From+i. NaN means that the head no longer held the entry, or
	// that its score is NaN. Protected entries are kept whatever their score.
	Scores []lukv.Scores

	// Evicted, [L][K], is what each head lost while decoding, in that order; nil, or
	// shorter, where nothing was lost. Only [Trace.AddEvicted] sets it.
	Evicted [][][]Eviction
}

// tracer collects the trace of a job; a nil one collects nothing.
type tracer struct {
	j       *layerCompressor
	budgets [][]int
	scores  []lukv.Scores // [L][K][T]
	held    [][][]int32   // [L][K] positions of a head's slots in the span, nil: all of them
	charged int64         // bytes in Model.memory
}

// newTracer returns the tracer that a session asks for, nil if it asks for none. Its
// memory is taken before the first layer is computed.
func newTracer(j *layerCompressor) (*tracer, error) {
	if j.s.opts.Trace == nil {
		return nil, nil
	}
	m := j.s.m
	t := &tracer{
		j: j, budgets: make([][]int, m.cfg.Layers), scores: make([]lukv.Scores, m.cfg.Layers), held: make([][][]int32, m.cfg.Layers),
	}
	if m.memory != nil {
		need := traceNeed(j.demand)
		if err := m.memory.Take(need); err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		t.charged = need
	}
	return t, nil
}

// traceBytes is the most that a token takes per head: score, position held and
// position kept.
const traceBytes = 12

func traceNeed(d lukv.Demand) int64 { return traceBytes * int64(d.T) * int64(d.Units()) }

// cut records what a layer is about to be cut by. If budgets cascade, that happens
// more than once: the scores stay.
func (t *tracer) cut(at int, budgets []int, scores lukv.Scores) {
	if t == nil {
		return
	}
	t.budgets[at] = slices.Clone(budgets)
	if t.scores[at] != nil {
		return
	}
	j := t.j
	before := j.before(at)
	t.scores[at], t.held[at] = make(lukv.Scores, len(scores)), make([][]int32, len(scores))
	for h, row := range scores {
		if t.scores[at][h] = row; len(row) == j.T {
			continue
		}
		held := j.s.cache.Positions(at, h, nil)
		if before != nil {
			held = held[before[h]:]
		}
		t.held[at][h] = held
		all := make([]float32, j.T)
		for i := range all {
			all[i] = float32(math.NaN())
		}
		for i, p := range held {
			all[int(p)-j.start] = row[i]
		}
		t.scores[at][h] = all
	}
}

// report hands the trace of a finished job to the session's callback.
func (t *tracer) report(s *Session) {
	if t == nil {
		return
	}
	j := t.j
	p := j.c.plan.Policy()
	x := &Trace{
		Model: s.m.ID(), Precision: s.m.precision, Policy: &p, Span: Span{j.start, j.end()},
		Budgets: t.budgets, Positions: make([][][]int32, len(j.kept)), Scores: t.scores,
	}
	for at, heads := range j.kept {
		for h, slots := range heads {
			positions := make([]int32, len(slots))
			for i, slot := range slots {
				if held := t.held[at][h]; held != nil {
					positions[i] = held[slot]
				} else {
					positions[i] = int32(j.start) + slot
				}
			}
			x.Positions[at] = append(x.Positions[at], positions)
		}
	}
	defer s.callBack()()
	s.opts.Trace(x)
}

// release gives the memory back. It may be called twice.
func (t *tracer) release() {
	if t != nil && t.charged > 0 {
		t.j.s.m.memory.Give(t.charged)
		t.charged = 0
	}
}

// Keys of a trace's metadata.
const (
	traceVersionKey = "lukv_trace"
	traceVersion    = "1"
	tracePolicy     = "policy" // JSON
	traceFrom       = "from"
	traceTo         = "to"
)

func tracePositions(layer, head int) string {
	return fmt.Sprintf("layer.%d.head.%d.positions", layer, head)
}

func traceScores(layer, head int) string { return fmt.Sprintf("layer.%d.head.%d.scores", layer, head) }

func traceEvicted(layer, head int) string {
	return fmt.Sprintf("layer.%d.head.%d.evicted", layer, head)
}

// Write writes the trace as a safetensors file (docs/formats.md). Equal traces give
// equal bytes.
func (t *Trace) Write(w io.Writer) error {
	K := 0
	for _, row := range t.Budgets {
		K = max(K, len(row))
	}
	for _, row := range t.Evicted {
		K = max(K, len(row))
	}
	var budgets []int32
	var tensors []safetensors.Named
	add := func(name string, typ tensor.Type, numbers any, shape ...int) {
		tensors = append(tensors, safetensors.Named{
			Name: name, Tensor: tensor.Tensor{Type: typ, Shape: shape},
			Stream: func(w io.Writer) error { return binary.Write(w, binary.LittleEndian, numbers) },
		})
	}
	for at, row := range t.Budgets {
		for h := range K {
			if gone := t.evictedOf(at, h); len(gone) > 0 {
				add(traceEvicted(at, h), tensor.I32, gone, len(gone), 2)
			}
			if row == nil {
				budgets = append(budgets, -1)
				continue
			}
			budgets = append(budgets, int32(row[h]))
			add(tracePositions(at, h), tensor.I32, t.Positions[at][h], len(t.Positions[at][h]))
			add(traceScores(at, h), tensor.F32, t.Scores[at][h], len(t.Scores[at][h]))
		}
	}
	add("budgets", tensor.I32, budgets, len(t.Budgets), K)
	b := bufio.NewWriterSize(w, 1<<16)
	err := safetensors.Write(b, tensors, map[string]string{
		traceVersionKey: traceVersion, metaModel: t.Model, metaPrecision: string(t.Precision), tracePolicy: t.Policy.String(),
		traceFrom: strconv.Itoa(t.Span.From), traceTo: strconv.Itoa(t.Span.To),
	})
	if err == nil {
		err = b.Flush()
	}
	if err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}

// IsTrace reports whether a file says that it is a trace.
func IsTrace(f *safetensors.File) bool { _, ok := f.Metadata()[traceVersionKey]; return ok }

// ReadTrace reads what [Trace.Write] wrote. The trace does not refer to the file.
func ReadTrace(f *safetensors.File) (*Trace, error) {
	t, err := readTrace(f)
	if err != nil {
		return nil, fmt.Errorf("read trace: %s: %w", f.Name(), err)
	}
	return t, nil
}

func readTrace(f *safetensors.File) (*Trace, error) {
	meta := f.Metadata()
	if v := meta[traceVersionKey]; v != traceVersion {
		return nil, fmt.Errorf("found version %q, expected %q", v, traceVersion)
	}
	t := &Trace{Model: meta[metaModel], Precision: Precision(meta[metaPrecision]), Policy: new(lukv.Policy)}
	if err := json.Unmarshal([]byte(meta[tracePolicy]), t.Policy); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	from, err := strconv.Atoi(meta[traceFrom])
	to, err2 := strconv.Atoi(meta[traceTo])
	if err := errors.Join(err, err2); err != nil || from < 0 || to <= from || to > math.MaxInt32 {
		return nil, fmt.Errorf("found a span from %q to %q, expected positions", meta[traceFrom], meta[traceTo])
	}
	t.Span = Span{from, to}
	b, ok := f.Tensor("budgets")
	if !ok || b.Type != tensor.I32 || len(b.Shape) != 2 || b.Len() == 0 {
		return nil, fmt.Errorf("budgets: found %v, expected I32 numbers of every layer and head", b)
	}
	L, K := b.Shape[0], b.Shape[1]
	t.Budgets, t.Positions, t.Scores = make([][]int, L), make([][][]int32, L), make([]lukv.Scores, L)
	all := b.Int64s(nil)
	for at := range L {
		if err := t.readEvicted(f, at, K); err != nil {
			return nil, err
		}
		row := all[at*K : (at+1)*K]
		if slices.Max(row) == -1 && slices.Min(row) == -1 {
			continue
		}
		for h, n := range row {
			if n < 0 || n > int64(to-from) {
				return nil, fmt.Errorf("layer %d, head %d: found a budget of %d, expected 0 to %d", at, h, n, to-from)
			}
			positions, scores, err := t.readHead(f, at, h)
			if err != nil {
				return nil, fmt.Errorf("layer %d, head %d: %w", at, h, err)
			}
			t.Budgets[at] = append(t.Budgets[at], int(n))
			t.Positions[at], t.Scores[at] = append(t.Positions[at], positions), append(t.Scores[at], scores)
		}
	}
	return t, nil
}

// readEvicted reads what the heads of a layer lost while decoding.
func (t *Trace) readEvicted(f *safetensors.File, at, heads int) error {
	for h := range heads {
		x, ok := f.Tensor(traceEvicted(at, h))
		if !ok {
			continue
		}
		if x.Type != tensor.I32 || len(x.Shape) != 2 || x.Shape[1] != 2 {
			return fmt.Errorf("layer %d, head %d: evicted: found %v, expected pairs of I32", at, h, x)
		}
		gone := make([]Eviction, x.Shape[0])
		for i := range gone {
			gone[i].Position = int32(binary.LittleEndian.Uint32(x.Data[8*i:]))
			gone[i].At = int32(binary.LittleEndian.Uint32(x.Data[8*i+4:]))
			if g := gone[i]; g.Position < 0 || g.At <= g.Position {
				return fmt.Errorf("layer %d, head %d: evicted: found position %d at %d tokens, expected it among them", at, h, g.Position, g.At)
			}
		}
		t.AddEvicted(at, h, gone)
	}
	return nil
}

// readHead reads the tensors of a head.
func (t *Trace) readHead(f *safetensors.File, at, h int) ([]int32, []float32, error) {
	s, ok := f.Tensor(traceScores(at, h))
	if !ok || s.Type != tensor.F32 || !s.HasShape(t.Span.To-t.Span.From) {
		return nil, nil, fmt.Errorf("scores: found %v, expected F32[%d]", s, t.Span.To-t.Span.From)
	}
	p, ok := f.Tensor(tracePositions(at, h))
	if !ok || p.Type != tensor.I32 || len(p.Shape) != 1 {
		return nil, nil, fmt.Errorf("positions: found %v, expected a row of I32", p)
	}
	positions := make([]int32, p.Len())
	least := t.Span.From
	for i := range positions {
		positions[i] = int32(binary.LittleEndian.Uint32(p.Data[4*i:]))
		if int(positions[i]) < least || int(positions[i]) >= t.Span.To {
			return nil, nil, fmt.Errorf("found position %d, expected ascending ones from %d on, below %d", positions[i], least, t.Span.To)
		}
		least = int(positions[i]) + 1
	}
	return positions, s.AppendF32s(nil), nil
}
