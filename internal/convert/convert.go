package convert

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// Options say how a file is converted.
type Options struct {
	Type tensor.Type // of the weights: BF16 or F32

	// ShardBytes bounds the files of weights, except for a single larger
	// tensor; 0 means 2 GiB.
	ShardBytes int64

	// Progress, if not nil, is told how many bytes of weights are written.
	Progress func(done, total int64)
}

// Result says what was made.
type Result struct {
	Architecture string `json:"architecture"`
	Name         string `json:"name,omitempty"` // of the model, as given in the file
	Tensors      int    `json:"tensors"`
	Parameters   int64  `json:"parameters"`
	Bytes        int64  `json:"bytes"`   // of weights
	Shards       int    `json:"shards"`  // files of weights
	Resumed      int    `json:"resumed"` // shards written by an earlier run
	Vocabulary   int    `json:"vocabulary"`
}

// converter is one conversion.
type converter struct {
	ctx    context.Context
	f      *gguf.File
	o      Options
	cfg    *config
	dir    string // the unfinished folder
	source string // identity of the file and the options
	done   int64
	total  int64
}

// weight is a tensor of the folder and where it comes from.
type weight struct {
	name  string
	from  *gguf.Tensor
	heads int // query or KV heads whose rows are permuted; 0: none
}

// sourceKey is the metadata key of a shard that says what it was made from.
const sourceKey = "lukv_convert"

// GGUF converts the file at path into the folder out, which must not exist.
func GGUF(ctx context.Context, path, out string, o Options) (*Result, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("convert: %w", err)
	}
	defer f.Close()
	r, err := convert(ctx, f, path, out, o)
	if err != nil {
		return nil, fmt.Errorf("convert %s: %w", path, err)
	}
	return r, nil
}

func convert(ctx context.Context, f *gguf.File, path, out string, o Options) (r *Result, err error) {
	if o.Type != tensor.BF16 && o.Type != tensor.F32 {
		return nil, fmt.Errorf("weights as %s, expected bf16 or f32", o.Type)
	}
	if o.ShardBytes <= 0 {
		o.ShardBytes = 2 << 30
	}
	if _, err := os.Lstat(out); err == nil {
		return nil, fmt.Errorf("%s exists already", out)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	c := &converter{ctx: ctx, f: f, o: o, dir: filepath.Clean(out) + ".partial"}
	if c.cfg, err = readConfig(f); err != nil {
		return nil, err
	}
	c.cfg.Type = map[tensor.Type]string{tensor.BF16: "bfloat16", tensor.F32: "float32"}[o.Type]
	weights, err := c.weights()
	if err != nil {
		return nil, err
	}
	v, err := readVocabulary(f)
	if err != nil {
		return nil, err
	}
	if len(v.tokens) > c.cfg.Vocab {
		return nil, fmt.Errorf("%d tokens, but token_embd.weight has %d rows", len(v.tokens), c.cfg.Vocab)
	}
	if c.source, err = c.identity(path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.dir, 0o777); err != nil {
		return nil, err
	}
	if err := c.texts(v); err != nil {
		return nil, err
	}
	r = &Result{Architecture: c.cfg.ModelType, Tensors: len(weights), Vocabulary: v.size()}
	if f.Has("general.name") {
		r.Name, _ = f.Text("general.name")
	}
	if err := c.shards(weights, r); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("the folder that was made cannot be used: %w", err)
	}
	return r, os.Rename(c.dir, out)
}

// identity says what the weights are made from and how: a shard with another
// identity does not count as finished work.
func (c *converter) identity(path string) (string, error) {
	file, err := inputfile.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.CopyN(h, file, int64(c.f.HeaderSize())); err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%d %d %s %d", info.Size(), info.ModTime().UnixNano(), c.o.Type, c.o.ShardBytes)
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// texts writes everything but the weights.
func (c *converter) texts(v *vocabulary) error {
	s, err := v.special()
	if err != nil {
		return err
	}
	file, config, err := v.tokenizer(s, c.cfg.MaxPositions)
	if err != nil {
		return err
	}
	g := generation{EOS: s.ends}
	c.cfg.EOS = s.ends
	if s.bos >= 0 {
		id := int64(s.bos)
		g.BOS, c.cfg.BOS = &id, &id
	}
	if s.pad >= 0 {
		id := int64(s.pad)
		g.Pad = &id
	}
	for name, x := range map[string]any{
		"config.json": c.cfg, "generation_config.json": g, "tokenizer.json": file, "tokenizer_config.json": config,
	} {
		b, err := writeJSON(x)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := c.write(name, b); err != nil {
			return err
		}
	}
	return nil
}

func (c *converter) write(name string, b []byte) error {
	return atomicfile.Write(filepath.Join(c.dir, name), 0o666, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// weights returns the tensors of the folder in the order of the network. Every
// tensor of the file must be among them, and vice versa.
func (c *converter) weights() ([]weight, error) {
	var out []weight
	used := map[string]bool{"rope_freqs.weight": true}
	var missing []string
	add := func(from, to string, heads int) {
		t := c.f.Tensor(from)
		if t == nil {
			missing = append(missing, from)
			return
		}
		used[from] = true
		out = append(out, weight{to, t, heads})
	}
	permuted := func(heads int) int {
		if c.cfg.arch.permuted {
			return heads
		}
		return 0
	}
	add("token_embd.weight", "model.embed_tokens.weight", 0)
	for i := range c.cfg.Layers {
		in, to := fmt.Sprintf("blk.%d.", i), fmt.Sprintf("model.layers.%d.", i)
		add(in+"attn_norm.weight", to+"input_layernorm.weight", 0)
		add(in+"attn_q.weight", to+"self_attn.q_proj.weight", permuted(c.cfg.Heads))
		add(in+"attn_k.weight", to+"self_attn.k_proj.weight", permuted(c.cfg.KVHeads))
		add(in+"attn_v.weight", to+"self_attn.v_proj.weight", 0)
		add(in+"attn_output.weight", to+"self_attn.o_proj.weight", 0)
		if c.cfg.arch.bias {
			for _, x := range []string{"q", "k", "v"} {
				add(in+"attn_"+x+".bias", to+"self_attn."+x+"_proj.bias", 0)
			}
		}
		if c.cfg.arch.qkNorm {
			add(in+"attn_q_norm.weight", to+"self_attn.q_norm.weight", 0)
			add(in+"attn_k_norm.weight", to+"self_attn.k_norm.weight", 0)
		}
		add(in+"ffn_norm.weight", to+"post_attention_layernorm.weight", 0)
		for _, x := range []string{"gate", "up", "down"} {
			add(in+"ffn_"+x+".weight", to+"mlp."+x+"_proj.weight", 0)
		}
		if len(missing) > 0 {
			break // one layer's names are enough, whatever block_count claims
		}
	}
	add("output_norm.weight", "model.norm.weight", 0)
	if !c.cfg.Tied {
		add("output.weight", "lm_head.weight", 0)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("missing tensors: %s", strings.Join(missing, ", "))
	}
	for _, t := range c.f.Tensors() {
		if !used[t.Name] {
			return nil, fmt.Errorf("tensor %q: it has no place in a model of the architecture %s: %w", t.Name, c.cfg.ModelType, model.ErrUnsupported)
		}
		if !t.Type.Readable() {
			return nil, fmt.Errorf("tensor %q: the type %s is %w", t.Name, t.Type, model.ErrUnsupported)
		}
	}
	for _, w := range out {
		if w.heads > 0 && (len(w.from.Shape) != 2 || w.from.Shape[0] != w.heads*c.cfg.HeadDim) {
			return nil, fmt.Errorf("tensor %q: shape %v, expected %d rows", w.from.Name, w.from.Shape, w.heads*c.cfg.HeadDim)
		}
	}
	return out, nil
}

// size is the number of bytes of a tensor in the folder.
func (c *converter) size(w weight) (int64, error) {
	n, err := tensor.Bytes(c.o.Type, w.from.Shape)
	if err != nil {
		return 0, fmt.Errorf("tensor %q: %w", w.from.Name, err)
	}
	return int64(n), nil
}

// shards writes the weights, except for files that an earlier run has finished.
func (c *converter) shards(weights []weight, r *Result) error {
	var files [][]weight
	held := int64(0)
	for _, w := range weights {
		n, err := c.size(w)
		if err != nil {
			return err
		}
		if len(files) == 0 || held+n > c.o.ShardBytes {
			files, held = append(files, nil), 0
		}
		files[len(files)-1] = append(files[len(files)-1], w)
		held += n
		c.total += n
	}
	r.Bytes, r.Shards = c.total, len(files)
	r.Parameters = c.total / int64(c.o.Type.Bytes(1))
	names := []string{safetensors.SingleName}
	if len(files) > 1 {
		names = names[:0]
		for i := range files {
			names = append(names, fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(files)))
		}
	}
	if err := c.sweep(names); err != nil {
		return err
	}
	index := map[string]string{}
	for i, ws := range files {
		name := names[i]
		for _, w := range ws {
			index[w.name] = name
		}
		if c.finished(name, ws) {
			r.Resumed++
			continue
		}
		var named []safetensors.Named
		for _, w := range ws {
			named = append(named, safetensors.Named{
				Name: w.name, Tensor: tensor.Tensor{Type: c.o.Type, Shape: w.from.Shape},
				Stream: func(out io.Writer) error { return c.stream(out, w) },
			})
		}
		err := safetensors.WriteFile(filepath.Join(c.dir, name), named, map[string]string{"format": "pt", sourceKey: c.source})
		if err != nil {
			return err
		}
	}
	if len(files) == 1 {
		return nil
	}
	b, err := writeJSON(map[string]any{"metadata": map[string]int64{"total_size": c.total}, "weight_map": index})
	if err != nil {
		return err
	}
	return c.write(safetensors.IndexName, b)
}

// weightFile matches the names of files that this package writes weights to.
var weightFile = regexp.MustCompile(`^model(-\d+-of-\d+)?\.safetensors$`)

// sweep removes the weights left by a stopped run with other options or another
// source, except for the files in names, which will be replaced. Its single file would
// be read in place of an index.
func (c *converter) sweep(names []string) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name == safetensors.IndexName || weightFile.MatchString(name) && !slices.Contains(names, name) {
			if err := os.Remove(filepath.Join(c.dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// finished reports whether an earlier run of the same conversion has written a
// shard, and counts it as done.
func (c *converter) finished(name string, ws []weight) bool {
	f, err := safetensors.Open(filepath.Join(c.dir, name))
	if err != nil {
		return false
	}
	defer f.Close()
	if f.Metadata()[sourceKey] != c.source || f.Len() != len(ws) {
		return false
	}
	bytes := int64(0)
	for _, w := range ws {
		t, ok := f.Tensor(w.name)
		if !ok || t.Type != c.o.Type || !slices.Equal(t.Shape, w.from.Shape) {
			return false
		}
		bytes += int64(len(t.Data))
	}
	c.advance(bytes)
	return true
}

func (c *converter) advance(n int64) {
	c.done += n
	if c.o.Progress != nil {
		c.o.Progress(c.done, c.total)
	}
}

// stream writes one tensor, some rows at a time.
func (c *converter) stream(out io.Writer, w weight) error {
	width := w.from.RowLength()
	rows := 1
	for _, d := range w.from.Shape[:len(w.from.Shape)-1] {
		rows *= d
	}
	at := max(1, (1<<18)/width) // rows at a time
	values := make([]float32, min(at, rows)*width)
	raw := make([]byte, 0, c.o.Type.Bytes(len(values)))
	for from := 0; from < rows; from += at {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		n := min(at, rows-from)
		for i := range n {
			if w.heads == 0 {
				if err := w.from.Rows(values[:n*width], from, n); err != nil {
					return err
				}
				break
			}
			if err := w.from.Rows(values[i*width:], storedRow(from+i, rows/w.heads), 1); err != nil {
				return err
			}
		}
		raw = raw[:0]
		for i, x := range values[:n*width] {
			if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
				return fmt.Errorf("tensor %q: element %d is %v, expected a finite number", w.from.Name, from*width+i, x)
			}
			if c.o.Type == tensor.F32 {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			} else {
				raw = binary.LittleEndian.AppendUint16(raw, tensor.F32ToBF16(x))
			}
		}
		if _, err := out.Write(raw); err != nil {
			return err
		}
		c.advance(int64(len(raw)))
	}
	return nil
}

// storedRow says where a llama file stores row r of queries or keys. Heads of d
// rows are published as two halves that rotate together, and stored with partners
// side by side: [h, 2, d/2] as [h, d/2, 2].
func storedRow(r, d int) int {
	head, at := r/d, r%d
	half, i := at/(d/2), at%(d/2)
	return head*d + 2*i + half
}

// check opens the result the way a model is opened.
func (c *converter) check() error {
	cfg, err := model.LoadConfig(c.dir)
	if err != nil {
		return err
	}
	w, err := model.LoadWeights(c.dir, cfg)
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err = tokenizer.Open(c.dir)
	return err
}
