package lowbit

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lukv/lukv/tensor"
)

// compressed-tensors: config_groups say which modules are stored how.

// group is one of config_groups.
type group struct {
	Targets []string `json:"targets"`
	Format  string   `json:"format"`
	Weights *weights `json:"weights"`
}

// weights is how a group stores weights.
type weights struct {
	Bits      int             `json:"num_bits"`
	Type      string          `json:"type"` // int or float
	Symmetric *bool           `json:"symmetric"`
	Strategy  string          `json:"strategy"` // tensor, channel, group, block or tensor_group
	Group     *int            `json:"group_size"`
	Block     []int           `json:"block_structure"`
	Order     json.RawMessage `json:"actorder"` // null, false, or a key of orders; true is an older "group"
}

func (w *weights) symmetric() bool { return w.Symmetric == nil || *w.Symmetric }

// orders are the orders in which columns were rounded, and whether columns then name their
// group.
var orders = map[string]bool{
	"": false, "null": false, "false": false, `"weight"`: false, `"static"`: false,
	"true": true, `"group"`: true, `"dynamic"`: true,
}

// order checks the order of columns, whose case does not matter.
func (w *weights) order() error {
	if _, ok := orders[strings.ToLower(string(w.Order))]; !ok {
		return refused("actorder", string(w.Order), "group, weight, static or dynamic")
	}
	return nil
}

// scattered reports whether columns name their group: always where the file has such
// names, as the format's own reader has it.
func (w *weights) scattered(m *module) bool {
	return orders[strings.ToLower(string(w.Order))] || has(m.src, m.name+columnGroups)
}

// Suffixes of tensors that a file may have although its config says otherwise.
const (
	columnGroups = ".weight_g_idx"
	zeroPoints   = ".weight_zero_point"
)

// shifted reports whether a module has zero points: where it must, and where the file has
// some, which are then 0.
func (w *weights) shifted(m *module) bool { return !w.symmetric() || has(m.src, m.name+zeroPoints) }

// centred returns an error if a symmetric module has zero points other than 0.
func (w *weights) centred(m *module, zeros []int16) error {
	for i, z := range zeros {
		if w.symmetric() && z != 0 {
			return fmt.Errorf("tensor %q: zero point %d is %d, expected 0 as \"symmetric\" is true", m.name+zeroPoints, i, z)
		}
	}
	return nil
}

func given(raw json.RawMessage) bool {
	return len(raw) > 0 && string(raw) != "null" && string(raw) != "{}"
}

// sparse reports whether a sparsity_config says that zeros are left out of the file.
func sparse(raw json.RawMessage) bool {
	var c struct {
		Format string `json:"format"`
	}
	return given(raw) && (json.Unmarshal(raw, &c) != nil || c.Format != "dense")
}

// target is a target of a group with the way to read its modules.
type target struct {
	pattern
	read func(m *module) (*Matrix, error)
}

func parseCompressed(s *settings) (*Scheme, error) {
	if sparse(s.Sparsity) {
		return nil, refused("sparsity_config", "sparse weights", "none")
	}
	if given(s.Transform) {
		return nil, refused("transform_config", "weights that are rotated at run time", "none")
	}
	ignore, err := parsePatterns(s.Ignore)
	if err != nil {
		return nil, fmt.Errorf("\"ignore\": %w", err)
	}
	names := make([]string, 0, len(s.Groups))
	for name := range s.Groups {
		names = append(names, name)
	}
	slices.Sort(names)
	var targets []target
	for _, name := range names {
		g := s.Groups[name]
		if g.Weights == nil {
			continue // of activations only
		}
		format := g.Format
		if format == "" {
			format = s.Format
		}
		read, err := g.Weights.reader(format)
		if err != nil {
			return nil, fmt.Errorf("\"config_groups\": %q: %w", name, err)
		}
		patterns, err := parsePatterns(g.Targets)
		if err != nil {
			return nil, fmt.Errorf("\"config_groups\": %q: \"targets\": %w", name, err)
		}
		for _, p := range patterns {
			targets = append(targets, target{p, read})
		}
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("\"config_groups\": no group has weights, which is %w", ErrUnsupported)
	}
	slices.SortStableFunc(targets, func(a, b target) int { return a.before(b.pattern) })
	find := func(module string) *target {
		i := slices.IndexFunc(targets, func(t target) bool { return t.matches(module) })
		if i < 0 || anyMatches(ignore, module) {
			return nil
		}
		return &targets[i]
	}
	return &Scheme{
		Name:   "compressed-tensors " + s.Format,
		stored: func(src Source, module string) bool { return find(module) != nil && there(src, module) },
		read:   func(m *module) (*Matrix, error) { return find(m.name).read(m) },
	}, nil
}

// there reports whether a checkpoint has a module: families may give one of several names.
func there(src Source, module string) bool {
	return slices.ContainsFunc([]string{".weight", ".weight_packed", ".weight_scale"}, func(suffix string) bool { return has(src, module+suffix) })
}

// reader returns the function that reads a module in a format.
func (w *weights) reader(format string) (func(m *module) (*Matrix, error), error) {
	wrong := func(key string, found any, expected string) (func(m *module) (*Matrix, error), error) {
		return nil, refused(key, found, expected+" with the format "+format)
	}
	if err := w.order(); err != nil {
		return nil, err
	}
	switch format {
	case "int-quantized", "naive-quantized":
		if w.Type != "int" || w.Bits != 8 {
			return wrong("weights", fmt.Sprintf("%s of %d bits", w.Type, w.Bits), "int of 8 bits")
		}
		if w.Strategy != "channel" && w.Strategy != "tensor" {
			return wrong("strategy", w.Strategy, "channel or tensor")
		}
		return w.readInt8, nil
	case "pack-quantized":
		if w.Type != "int" || w.Bits != 4 && w.Bits != 8 {
			return wrong("weights", fmt.Sprintf("%s of %d bits", w.Type, w.Bits), "int of 4 or 8 bits")
		}
		if w.Strategy != "channel" && w.Strategy != "group" {
			return wrong("strategy", w.Strategy, "channel or group")
		}
		if w.Strategy == "group" && (w.Group == nil || *w.Group < 1) {
			return wrong("group_size", "a group without a size", "a number from 1")
		}
		return w.readPacked, nil
	case "float-quantized":
		if w.Type != "float" || w.Bits != 8 {
			return wrong("weights", fmt.Sprintf("%s of %d bits", w.Type, w.Bits), "float of 8 bits")
		}
		block := w.Block
		switch {
		case w.Strategy == "channel" || w.Strategy == "tensor":
			block = nil
		case w.Strategy != "block":
			return wrong("strategy", w.Strategy, "tensor, channel or block")
		case len(block) != 2 || block[0] < 1 || block[1] < 1:
			return wrong("block_structure", block, "two numbers from 1")
		}
		return func(m *module) (*Matrix, error) { return m.float8(".weight_scale", block) }, nil
	case "nvfp4-pack-quantized":
		return func(m *module) (*Matrix, error) {
			return m.nvfp4(".weight_packed", ".weight_global_scale", func(a, b float32) float32 { return a / b })
		}, nil
	case "mxfp4-pack-quantized":
		return (*module).mxfp4, nil
	}
	return nil, refused("format", fmt.Sprintf("%q", format), "int-quantized, pack-quantized, float-quantized, nvfp4-pack-quantized or mxfp4-pack-quantized")
}

// readInt8 reads a matrix of bytes with a scale, and perhaps a zero point, for each row
// or for all.
func (w *weights) readInt8(m *module) (*Matrix, error) {
	t, err := m.shaped(".weight", []int{m.rows, m.cols}, tensor.I8)
	if err != nil {
		return nil, err
	}
	shape := []int{m.rows, 1}
	if w.Strategy == "tensor" {
		shape = []int{1}
	}
	scales, _, err := m.scales(".weight_scale", shape)
	if err != nil {
		return nil, err
	}
	x := &integers{m: m, group: m.cols, count: 1, low: -128, high: 127, scales: spread(scales, m.rows), unpack: bytesOf(t, m.cols)}
	if w.shifted(m) {
		z, err := m.shaped(zeroPoints, shape, tensor.I8)
		if err != nil {
			return nil, err
		}
		x.zeros = make([]int16, m.rows)
		for i := range x.zeros {
			x.zeros[i] = int16(int8(z.Data[i%len(z.Data)]))
		}
	}
	return x.matrix(), w.centred(m, x.zeros)
}

// bytesOf unpacks a matrix of signed bytes.
func bytesOf(t tensor.Tensor, cols int) func(dst []int16, from, n int) {
	return func(dst []int16, from, n int) {
		for i, b := range t.Data[from*cols : (from+n)*cols] {
			dst[i] = int16(int8(b))
		}
	}
}

// readPacked reads a matrix of words of eight or four integers, stored with half their
// range added.
func (w *weights) readPacked(m *module) (*Matrix, error) {
	if err := m.checkShape(); err != nil {
		return nil, err
	}
	each, half := 32/w.Bits, int16(1)<<(w.Bits-1)
	t, err := m.shaped(".weight_packed", []int{m.rows, (m.cols + each - 1) / each}, words32...)
	if err != nil {
		return nil, err
	}
	x := &integers{m: m, group: m.cols, low: -half, high: half - 1, unpack: packedRows(t, m.cols, w.Bits, half)}
	if w.Strategy == "group" {
		if x.group, err = m.groups(*w.Group); err != nil {
			return nil, fmt.Errorf("\"group_size\": %w", err)
		}
	}
	x.count = m.cols / x.group
	if x.scales, _, err = m.scales(".weight_scale", []int{m.rows, x.count}); err != nil {
		return nil, err
	}
	if w.shifted(m) {
		if x.zeros, err = w.packedZeros(m, x.count, half); err != nil {
			return nil, err
		}
		if err := w.centred(m, x.zeros); err != nil {
			return nil, err
		}
	}
	if w.scattered(m) {
		x.index, err = m.groupIndex(columnGroups, x.group, x.count)
	}
	return x.matrix(), err
}

// checkShape compares weight_shape with the network's.
func (m *module) checkShape() error {
	const suffix = ".weight_shape"
	t, err := m.shaped(suffix, []int{2}, tensor.I64)
	if err != nil {
		return err
	}
	found := t.Int64s(nil)
	for i, want := range []int{m.rows, m.cols} {
		if found[i] != int64(want) {
			return fmt.Errorf("tensor %q: dimension %d is %d, expected %d", m.name+suffix, i, found[i], want)
		}
	}
	return nil
}

// packedZeros reads zero points, [rows, count]: packed along the rows, or one byte each.
func (w *weights) packedZeros(m *module, count int, half int16) ([]int16, error) {
	const suffix = zeroPoints
	t, err := m.get(suffix, tensor.I32, tensor.I8)
	if err != nil {
		return nil, err
	}
	each, mask := 32/w.Bits, uint32(1)<<w.Bits-1
	shape := []int{(m.rows + each - 1) / each, count}
	if t.Type == tensor.I8 {
		shape[0] = m.rows
	}
	if !t.HasShape(shape...) {
		return nil, m.wrongShape(suffix, t, tensor.ShapeString(shape))
	}
	out := make([]int16, m.rows*count)
	for i := range out {
		r, g := i/count, i%count
		if t.Type == tensor.I8 {
			out[i] = int16(int8(t.Data[i]))
		} else {
			out[i] = int16(word(t, r/each*count+g)>>(r%each*w.Bits)&mask) - half
		}
	}
	return out, nil
}

// nvfp4 reads 4-bit floats with an 8-bit float for every 16 and one number for all, which
// join joins to a scale.
func (m *module) nvfp4(packed, global string, join func(scale, global float32) float32) (*Matrix, error) {
	const group = 16
	if m.cols%group != 0 {
		return nil, fmt.Errorf("groups of %d do not divide the %d columns of %q", group, m.cols, m.name)
	}
	t, err := m.shaped(packed, []int{m.rows, m.cols / 2}, tensor.U8)
	if err != nil {
		return nil, err
	}
	s, err := m.shaped(".weight_scale", []int{m.rows, m.cols / group}, tensor.F8E4M3)
	if err != nil {
		return nil, err
	}
	g, _, err := m.scales(global, []int{1})
	if err != nil {
		return nil, err
	}
	scales := make([]float32, len(s.Data))
	for i, b := range s.Data {
		if scales[i] = join(float8[b], g[0]); !finite(scales[i]) {
			return nil, fmt.Errorf("tensor %q: scale %d is %v, expected a finite number", m.name+".weight_scale", i, scales[i])
		}
	}
	return m.nibbles(t, scales, group), nil
}

// mxfp4 reads 4-bit floats with a power of two for every 32.
func (m *module) mxfp4() (*Matrix, error) {
	const group = 32
	if m.cols%group != 0 {
		return nil, fmt.Errorf("groups of %d do not divide the %d columns of %q", group, m.cols, m.name)
	}
	t, err := m.shaped(".weight_packed", []int{m.rows, m.cols / 2}, tensor.U8)
	if err != nil {
		return nil, err
	}
	s, err := m.shaped(".weight_scale", []int{m.rows, m.cols / group}, tensor.U8, tensor.F8E8M0)
	if err != nil {
		return nil, err
	}
	scales := make([]float32, len(s.Data))
	for i, b := range s.Data {
		if b == 255 {
			return nil, fmt.Errorf("tensor %q: scale %d is NaN, expected a finite number", m.name+".weight_scale", i)
		}
		scales[i] = float32(math.Ldexp(1, int(b)-127))
	}
	return m.nibbles(t, scales, group), nil
}

// nibbles is a matrix of 4-bit floats, the first of two in the low half of a byte.
func (m *module) nibbles(t tensor.Tensor, scales []float32, group int) *Matrix {
	cols := m.cols
	return &Matrix{Rows: m.rows, Cols: cols, rowsOf: func(dst []float32, from, n int) {
		for i := range dst {
			at := from*cols + i
			dst[i] = float4[t.Data[at/2]>>(at%2*4)&15] * scales[at/group]
		}
	}}
}

// float8 reads 8-bit floats with a scale for the whole, each row, or each block of rows
// and columns, the last of which may be shorter.
func (m *module) float8(suffix string, block []int) (*Matrix, error) {
	t, err := m.shaped(".weight", []int{m.rows, m.cols}, tensor.F8E4M3)
	if err != nil {
		return nil, err
	}
	for i, b := range t.Data {
		if b&127 == 127 {
			return nil, fmt.Errorf("tensor %q: element %d is NaN, expected a finite number", m.name+".weight", i)
		}
	}
	down, across := m.rows, m.cols // of a block
	shapes := [][]int{{1}, {m.rows, 1}, {m.rows}}
	if block != nil {
		down, across = min(block[0], m.rows), min(block[1], m.cols)
		shapes = [][]int{{(m.rows + down - 1) / down, (m.cols + across - 1) / across}}
	}
	scales, shape, err := m.scales(suffix, shapes...)
	if err != nil {
		return nil, err
	}
	if block == nil && shape[0] == m.rows {
		down = 1
	}
	count, cols := (m.cols+across-1)/across, m.cols
	return &Matrix{Rows: m.rows, Cols: cols, rowsOf: func(dst []float32, from, n int) {
		for i := range dst {
			r, c := from+i/cols, i%cols
			dst[i] = float8[t.Data[r*cols+c]] * scales[r/down*count+c/across]
		}
	}}, nil
}
