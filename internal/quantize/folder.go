package quantize

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/workers"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// FolderOptions configure what Folder writes.
type FolderOptions struct {
	// Bits of the integers: 8, with a scale for each row, or 4, with a scale for groups of
	// 128, 64 or 32 columns, the first of these that divides the rows of all matrices that
	// 32 divides.
	Bits int

	// Importance, if not nil, weighs the errors of columns.
	Importance *Importance

	// Progress, if not nil, is told how many elements are done.
	Progress func(done, total int64)
}

// groups are the columns that may share a scale of 4-bit integers, in order of preference.
// Readers use blocks of 32.
var groups = []int{128, 64, 32}

// matrixRoles are the matrices that become integers. Embedding, head and routers stay: they
// are small, or decide much.
var matrixRoles = []arch.Role{
	arch.RoleQ, arch.RoleK, arch.RoleV, arch.RoleO, arch.RoleGate, arch.RoleUp, arch.RoleDown,
	arch.RoleSharedGate, arch.RoleSharedUp, arch.RoleSharedDown,
	arch.RoleExpertGate, arch.RoleExpertUp, arch.RoleExpertDown,
}

// Folder writes the model in the folder dir, with weights of BF16, F16 or F32, to the folder
// out with the matrices of its layers as integers, in the format of compressed-tensors. out
// must not exist and appears only when it is complete; until then the
// folder has .partial after its name, which disappears if Folder fails.
//
// The files of weights have the names of the source's. Tensors are read, encoded and
// written a few rows at a time, by all processors; the bytes do not depend on their number.
// Memory is needed for the scales of one file of weights.
func Folder(ctx context.Context, dir, out string, o FolderOptions) (*Result, error) {
	if o.Bits != 8 && o.Bits != 4 {
		return nil, fmt.Errorf("quantize %s: integers of %d bits, expected 8 or 4", dir, o.Bits)
	}
	f := &folder{ctx: ctx, dir: dir, o: o, result: &Result{Types: map[string]int{}}, pool: workers.New(runtime.GOMAXPROCS(0))}
	err := f.run(out)
	if err := errors.Join(err, f.pool.Close()); err != nil {
		return nil, fmt.Errorf("quantize %s: %w", dir, err)
	}
	return f.result, nil
}

// folder is one run of Folder.
type folder struct {
	ctx         context.Context
	dir         string
	o           FolderOptions
	pool        *workers.Pool
	cfg         *arch.Config
	src         *safetensors.Checkpoint
	matrices    map[string][]*integers // by the tensor that holds them
	ignored     []string               // modules that stay
	group       int
	result      *Result
	done, total int64
}

func (f *folder) run(out string) (err error) {
	if err := absent(out); err != nil {
		return err
	}
	if f.cfg, err = arch.Load(f.dir); err != nil {
		return err
	}
	if err := rounded(f.cfg); err != nil {
		return err
	}
	// A folder that cannot be opened as a model is not worth the work.
	w, err := weights.Load(f.dir, f.cfg)
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if f.src, err = safetensors.OpenCheckpoint(f.dir); err != nil {
		return err
	}
	defer f.src.Close()
	if err := f.plan(); err != nil {
		return err
	}
	partial := filepath.Clean(out) + ".partial"
	if err := os.Mkdir(partial, 0o777); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already: another run works there, or one was killed; in that case remove it", partial)
	} else if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(partial))
		}
	}()
	if err := f.texts(partial); err != nil {
		return err
	}
	if err := f.weights(partial); err != nil {
		return err
	}
	if err := f.check(partial); err != nil {
		return fmt.Errorf("the folder that was made cannot be used: %w", err)
	}
	return os.Rename(partial, out)
}

// check finds every matrix of a written folder as a reader does. To open the folder as a
// model would take memory for all of them.
func (f *folder) check(dir string) error {
	cfg, err := arch.Load(dir)
	if err != nil {
		return err
	}
	c, err := safetensors.OpenCheckpoint(dir)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, list := range f.matrices {
		for _, m := range list {
			if !cfg.Lowbit.Stored(c, m.name) {
				return fmt.Errorf("%q is not among the modules of %s", m.name, cfg.Lowbit.Name)
			}
			if _, err := cfg.Lowbit.Matrix(c, m.name, m.rows, m.cols); err != nil {
				return err
			}
		}
	}
	return nil
}

// rounded returns an error if a folder's matrices are in few bits.
func rounded(cfg *arch.Config) error {
	if cfg.Lowbit == nil {
		return nil
	}
	return fmt.Errorf("its weights are already stored as %s: rounding them again adds to their errors; start from a folder of BF16, F16 or F32", cfg.Lowbit.Name)
}

// absent returns an error if there is something of the name path.
func absent(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already", path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// plan finds the matrices, and the modules that stay.
func (f *folder) plan() error {
	f.matrices = map[string][]*integers{}
	table := f.cfg.Tensors()
	for at, p := range f.cfg.Plans() {
		name := func(role arch.Role) string { return table.Name(arch.HuggingFace, role, at) }
		for _, role := range matrixRoles {
			shape := p.Shape(f.cfg, role)
			if shape == nil {
				continue
			}
			experts := 1
			if role == arch.RoleExpertGate || role == arch.RoleExpertUp || role == arch.RoleExpertDown {
				experts = p.FFN.Experts
			}
			for x := range experts {
				if err := f.find(p.Stored(f.cfg, role, x, name), strings.ReplaceAll(name(role), "%d", fmt.Sprint(x)), shape, f.o.Importance.of(at, role)); err != nil {
					return err
				}
			}
		}
	}
	if err := f.divide(); err != nil {
		return err
	}
	f.ignored = []string{"lm_head"}
	for name, t := range f.src.All() {
		if module, ok := strings.CutSuffix(name, ".weight"); ok && len(t.Shape) > 1 && f.matrices[name] == nil &&
			module != "lm_head" && !strings.HasSuffix(module, "embed_tokens") {
			f.ignored = append(f.ignored, module)
		}
		f.result.Before += int64(len(t.Data))
		f.total += int64(t.Len())
	}
	return nil
}

// find adds the matrix of a place, of the given name and shape, which the checkpoint stores in
// one of several ways. Matrices that are rows of another remain one, except for those of
// experts: readers want a module for each.
func (f *folder) find(stored []arch.StoredTensor, name string, shape []int, importance []float32) error {
	for _, s := range stored {
		t, file, ok := f.src.Tensor(s.Name)
		if !ok {
			continue
		}
		m := &integers{name: strings.TrimSuffix(s.Name, ".weight"), src: t, bits: f.o.Bits, scaleType: tensor.BF16, importance: importance}
		if t.Type == tensor.F16 {
			m.scaleType = tensor.F16
		}
		switch {
		case len(t.Shape) == 2 && f.matrices[s.Name] != nil:
			return nil
		case len(t.Shape) == 2:
			m.rows, m.cols = t.Shape[0], t.Shape[1]
		case name == "":
			return fmt.Errorf("checkpoint file %q: tensor %q holds matrices whose own names are not known", file, s.Name)
		default:
			m.name, m.from, m.rows, m.cols = strings.TrimSuffix(name, ".weight"), s.Row, shape[0], shape[1]
		}
		f.matrices[s.Name] = append(f.matrices[s.Name], m)
		return nil
	}
	return fmt.Errorf("tensor %q is missing: the names of a multimodal model, or of a network without its head, are not written; expected those of a language model", stored[len(stored)-1].Name)
}

// divide gives matrices their groups: the whole row for 8 bits, and one size for all matrices
// of 4 bits. Those that no group divides stay.
func (f *folder) divide() error {
	if f.o.Bits == 8 {
		for _, list := range f.matrices {
			for _, m := range list {
				m.group = m.cols
			}
		}
		return nil
	}
	uneven := func(group int) func(m *integers) bool {
		return func(m *integers) bool { return m.cols%group != 0 }
	}
	smallest := groups[len(groups)-1]
	for name, list := range f.matrices {
		if !slices.ContainsFunc(list, uneven(smallest)) {
			continue
		}
		if len(list[0].src.Shape) != 2 {
			return fmt.Errorf("tensor %q: groups of %d do not divide its rows of %d, expected a multiple for experts; 8 bits have no groups", name, smallest, list[0].cols)
		}
		delete(f.matrices, name)
	}
	if len(f.matrices) == 0 {
		return fmt.Errorf("groups of %d divide the rows of no matrix, expected a model with wider rows, or 8 bits", smallest)
	}
	all := slices.Concat(slices.Collect(maps.Values(f.matrices))...)
	for _, f.group = range groups {
		if !slices.ContainsFunc(all, uneven(f.group)) {
			break
		}
	}
	for _, m := range all {
		m.group = f.group
	}
	return nil
}

// scheme is the quantization_config of compressed-tensors.
type scheme struct {
	Method string             `json:"quant_method"`
	Format string             `json:"format"`
	Status string             `json:"quantization_status"`
	Groups map[string]modules `json:"config_groups"`
	Ignore []string           `json:"ignore"`
	Cache  *struct{}          `json:"kv_cache_scheme"`
}

// modules are those that are stored alike.
type modules struct {
	Targets []string  `json:"targets"`
	Weights numbers   `json:"weights"`
	Input   *numbers  `json:"input_activations"`
	Output  *struct{} `json:"output_activations"`
}

// numbers is how weights are stored, or activations rounded.
type numbers struct {
	Bits      int    `json:"num_bits"`
	Type      string `json:"type"`
	Symmetric bool   `json:"symmetric"`
	Strategy  string `json:"strategy"`
	Group     *int   `json:"group_size"`
	Dynamic   bool   `json:"dynamic"`
}

func (f *folder) scheme() scheme {
	s := scheme{Method: "compressed-tensors", Format: "pack-quantized", Status: "compressed", Ignore: f.ignored}
	g := modules{Targets: []string{"Linear"}, Weights: numbers{Bits: f.o.Bits, Type: "int", Symmetric: true, Strategy: "group", Group: &f.group}}
	if f.o.Bits == 8 {
		s.Format = "int-quantized"
		g.Weights.Strategy, g.Weights.Group = "channel", nil
		// Readers that multiply integers round activations, each token with a scale of its own.
		g.Input = &numbers{Bits: 8, Type: "int", Symmetric: true, Strategy: "token", Dynamic: true}
	}
	s.Groups = map[string]modules{"group_0": g}
	return s
}

// maxText bounds the text files of a model: tokenizers are the largest.
const maxText = 1 << 28

// texts writes everything but the weights: config.json with how weights are stored, its other
// keys as they are, and copies of the files that say how to use the model.
func (f *folder) texts(to string) error {
	text, err := inputfile.Read(filepath.Join(f.dir, configName), maxText)
	if err != nil {
		return err
	}
	if text, err = withKey(text, "quantization_config", f.scheme()); err != nil {
		return fmt.Errorf("%s: %w", configName, err)
	}
	if err := writeText(filepath.Join(to, configName), text); err != nil {
		return err
	}
	names, err := f.textNames()
	if err != nil {
		return err
	}
	for _, name := range names {
		if f.ctx.Err() != nil {
			return context.Cause(f.ctx)
		}
		text, err := inputfile.Read(filepath.Join(f.dir, name), maxText)
		if err == nil {
			err = writeText(filepath.Join(to, name), text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const configName = "config.json"

// textNames lists the files to copy: the folder's own, templates and the settings of
// embeddings, without those that describe weights.
func (f *folder) textNames() ([]string, error) {
	var names []string
	for _, pattern := range []string{"*.json", "*.jinja", "*.model", "*.txt", "LICENSE*", "NOTICE*", "additional_chat_templates/*.jinja", "*_Pooling/config.json"} {
		list, err := fs.Glob(os.DirFS(f.dir), pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, list...)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		info, err := os.Stat(filepath.Join(f.dir, name))
		return name == configName || strings.HasSuffix(name, ".index.json") || err == nil && info.IsDir()
	}), nil
}

func writeText(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return atomicfile.Write(path, 0o666, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// withKey returns the text of a JSON object with a key set. All other values keep their text.
func withKey(text []byte, key string, v any) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("found %v, expected an object: %w", t, cmp.Or(err, errors.ErrUnsupported))
	}
	out := []byte("{\n")
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, err
		}
		name, err := json.Marshal(t)
		if err != nil {
			return nil, err
		}
		if t != key {
			out = fmt.Appendf(out, "  %s: %s,\n", name, raw)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	value, err := json.MarshalIndent(v, "  ", "  ")
	return fmt.Appendf(out, "  %q: %s\n}\n", key, value), err
}

// weights writes the files of weights, and the index if the source has one.
func (f *folder) weights(to string) error {
	index := map[string]string{}
	sharded := false
	for _, file := range f.src.Files() {
		name, err := filepath.Rel(f.dir, file.Name())
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		sharded = sharded || name != safetensors.SingleName
		var list []safetensors.Named
		for tensorName, t := range file.All() {
			if _, at, ok := f.src.Tensor(tensorName); ok && at == file.Name() { // an index may leave some out
				list = append(list, f.named(tensorName, t)...)
			}
		}
		for _, n := range list {
			index[n.Name] = path.Clean(name)
			size, err := tensor.Bytes(n.Tensor.Type, n.Tensor.Shape)
			if err != nil {
				return fmt.Errorf("tensor %q: %w", n.Name, err)
			}
			f.result.Bytes += int64(size)
		}
		target := filepath.Join(to, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(target), 0o777); err != nil {
			return err
		}
		if err := guarded(func() error { return safetensors.WriteFile(target, list, map[string]string{"format": "pt"}) }); err != nil {
			return err
		}
		for _, list := range f.matrices { // the scales of the file
			for _, m := range list {
				m.scales = nil
			}
		}
	}
	if !sharded {
		return nil
	}
	text, err := json.MarshalIndent(map[string]any{"metadata": map[string]int64{"total_size": f.result.Bytes}, "weight_map": index}, "", "  ")
	if err != nil {
		return err
	}
	return writeText(filepath.Join(to, safetensors.IndexName), text)
}

// guarded runs fn, which reads mapped files, and returns weights.ErrChanged if one became
// shorter.
func guarded(fn func() error) (err error) {
	was := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(was)
		p := recover()
		cause := p
		if w, ok := p.(*workers.Panic); ok {
			cause = w.Value
		}
		if _, ok := cause.(interface{ Addr() uintptr }); ok {
			err = weights.ErrChanged
		} else if p != nil {
			panic(p)
		}
	}()
	return fn()
}

// copyBytes is how many bytes of a tensor that stays are written at a time.
const copyBytes = 1 << 22

// named returns what a tensor becomes.
func (f *folder) named(name string, t tensor.Tensor) (out []safetensors.Named) {
	list := f.matrices[name]
	if list == nil {
		f.count(t.Type.String())
		return []safetensors.Named{{Name: name, Tensor: t, Stream: func(w io.Writer) error {
			for data := range slices.Chunk(t.Data, copyBytes) {
				if f.ctx.Err() != nil {
					return context.Cause(f.ctx)
				}
				if _, err := w.Write(data); err != nil {
					return err
				}
			}
			f.advance(int64(t.Len()))
			return nil
		}}}
	}
	for _, m := range list {
		f.count(fmt.Sprintf("INT%d", m.bits))
		out = append(out, f.parts(m)...)
	}
	return out
}

// parts returns the tensors of a matrix of integers.
func (f *folder) parts(m *integers) []safetensors.Named {
	ready := func() error {
		if m.scales != nil {
			return nil
		}
		return m.choose(f.ctx, f.pool, f.advance)
	}
	scales := safetensors.Named{
		Name: m.name + ".weight_scale", Tensor: tensor.Tensor{Type: m.scaleType, Shape: []int{m.rows, m.cols / m.group}},
		Stream: func(w io.Writer) error {
			err := ready()
			if err == nil {
				_, err = w.Write(m.scales)
			}
			return err
		},
	}
	packed := safetensors.Named{
		Name: m.name + ".weight", Tensor: tensor.Tensor{Type: tensor.I8, Shape: []int{m.rows, m.cols}},
		Stream: func(w io.Writer) error {
			if err := ready(); err != nil {
				return err
			}
			return m.pack(f.ctx, f.pool, func(b []byte) error {
				_, err := w.Write(b)
				return err
			})
		},
	}
	if m.bits == 8 {
		return []safetensors.Named{packed, scales}
	}
	packed.Name = m.name + ".weight_packed"
	packed.Tensor = tensor.Tensor{Type: tensor.I32, Shape: []int{m.rows, m.cols / 8}}
	shape := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(m.rows)), uint64(m.cols))
	return []safetensors.Named{packed, scales, {Name: m.name + ".weight_shape", Tensor: tensor.Tensor{Type: tensor.I64, Shape: []int{2}, Data: shape}}}
}

func (f *folder) count(typ string) {
	f.result.Tensors++
	f.result.Types[typ]++
}

func (f *folder) advance(elements int64) {
	f.done += elements
	if f.o.Progress != nil {
		f.o.Progress(f.done, f.total)
	}
}
