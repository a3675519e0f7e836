package quantize

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// FolderGGUF writes the model in the folder dir, with weights of BF16, F16 or F32, to the GGUF
// file out, which must not exist and appears only when it is complete. Its key general.name is
// name, or that of the folder if name is empty. Norms, biases and routers become F32.
//
// Before it writes, it reads its own keys back: a model that they do not describe is an error,
// which names what they leave out and wraps [model.ErrUnsupported]. As [GGUF], it works on
// a few rows at a time.
func FolderGGUF(ctx context.Context, dir, out, name string, o Options) (*Result, error) {
	r, err := folderGGUF(ctx, dir, out, name, o)
	if err != nil {
		return nil, fmt.Errorf("quantize %s: %w", dir, err)
	}
	return r, nil
}

func folderGGUF(ctx context.Context, dir, out, name string, o Options) (*Result, error) {
	kind, err := o.fileType(true)
	if err != nil {
		return nil, err
	}
	if err := absent(out); err != nil {
		return nil, err
	}
	cfg, err := arch.Load(dir)
	if err != nil {
		return nil, err
	}
	if err := rounded(cfg); err != nil {
		return nil, err
	}
	w, err := weights.Load(dir, cfg)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	keys, vectors, err := metadata(dir, cfg)
	if err != nil {
		return nil, err
	}
	if name == "" {
		if dir, err = filepath.Abs(dir); err != nil {
			return nil, err
		}
		name = filepath.Base(dir)
	}
	keys["general.name"], keys["general.file_type"], keys["general.quantization_version"] = name, kind, uint32(2)
	var pairs []gguf.Pair
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		pairs = append(pairs, gguf.Pair{Key: key, Value: keys[key]})
	}
	to := newWriter(ctx, o)
	entries, err := to.entries(folderInputs(cfg, w, vectors))
	if err != nil {
		return nil, err
	}
	err = guarded(func() error {
		if err := described(cfg, pairs, entries); err != nil {
			return err
		}
		to.done, to.result.Bytes = 0, 0 // vectors have been read
		return gguf.WriteFile(out, pairs, entries)
	})
	if err != nil {
		return nil, err
	}
	return to.result, nil
}

// otherTypes is what to do with a model that has no GGUF form.
const otherTypes = "the types int8 and int4 make folders of it"

// described returns an error if a reader of the file would compute something else than the
// model of cfg.
func described(cfg *arch.Config, pairs []gguf.Pair, entries []gguf.Entry) error {
	f, err := gguf.Preview(pairs, entries)
	if err != nil {
		return err
	}
	files, err := weights.TextFiles(f)
	if err != nil {
		return err
	}
	read, err := arch.LoadFS(files)
	if err != nil {
		return err
	}
	if what := cfg.Differs(read); what != "" {
		return arch.Unsupported(fmt.Errorf("GGUF has no keys for all of this model of the architecture %s: readers would find another %s; %s",
			cfg.Arch, what, otherTypes))
	}
	return nil
}

// metadata returns the keys of a folder's model and its vectors of divisors, by name.
func metadata(dir string, cfg *arch.Config) (keys map[string]any, vectors map[string][]float32, err error) {
	name, keys, vectors, err := cfg.GGUFKeys()
	if err != nil {
		return nil, nil, err
	}
	keys["general.architecture"] = name
	files := inputfile.Dir(dir)
	for _, add := range []func() (map[string]any, error){
		func() (map[string]any, error) { return tokenizerKeys(files, name, cfg) },
		func() (map[string]any, error) { return templateKeys(files) },
		func() (map[string]any, error) { return embeddingKeys(files, name) },
		func() (map[string]any, error) { return samplingKeys(&cfg.Generation), nil },
	} {
		more, err := add()
		if err != nil {
			return nil, nil, err
		}
		maps.Copy(keys, more)
	}
	return keys, vectors, nil
}

// endKeys are the keys of tokens that end a text.
var endKeys = []string{"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}

// tokenizerKeys describes the tokenizer.
func tokenizerKeys(files fs.FS, name string, cfg *arch.Config) (map[string]any, error) {
	tok, err := tokenizer.Load(files)
	if err != nil {
		return nil, err
	}
	keys, err := tok.GGUF(name, cfg.Vocab)
	if errors.Is(err, errors.ErrUnsupported) {
		err = arch.Unsupported(fmt.Errorf("%w; %s", err, otherTypes))
	}
	if err != nil {
		return nil, err
	}
	var ends []uint32
	if id, ok := keys[endKeys[0]].(uint32); ok {
		ends = append(ends, id)
	}
	for _, id := range cfg.EOS {
		if id >= 0 && id < cfg.Vocab && !slices.Contains(ends, uint32(id)) {
			ends = append(ends, uint32(id))
		}
	}
	if len(ends) > len(endKeys) {
		return nil, arch.Unsupported(fmt.Errorf("%d tokens end a text, %v, but GGUF has keys for %d: leave some of them out of eos_token_id in generation_config.json",
			len(ends), ends, len(endKeys)))
	}
	for i, id := range ends {
		keys[endKeys[i]] = id
	}
	special, err := chat.SpecialTokens(files)
	if err != nil {
		return nil, err
	}
	for from, to := range map[string]string{"pad_token": "tokenizer.ggml.padding_token_id", "unk_token": "tokenizer.ggml.unknown_token_id"} {
		text, _ := special.Get(from)
		if text, ok := text.(string); ok && keys[to] == nil {
			if id, ok := tok.ID(text); ok {
				keys[to] = uint32(id)
			}
		}
	}
	return keys, nil
}

// templateKeys holds the chat templates.
func templateKeys(files fs.FS) (map[string]any, error) {
	const key = "tokenizer.chat_template"
	templates, err := chat.Sources(files)
	if err != nil {
		return nil, err
	}
	keys := map[string]any{}
	text, ok := templates["default"]
	if !ok { // then readers look for no other
		return keys, nil
	}
	keys[key] = text
	delete(templates, "default")
	if len(templates) == 0 {
		return keys, nil
	}
	names := slices.Sorted(maps.Keys(templates))
	keys["tokenizer.chat_templates"] = names
	for _, name := range names {
		keys[key+"."+name] = templates[name]
	}
	return keys, nil
}

// embeddingKeys says how a model of embeddings pools.
func embeddingKeys(files fs.FS, name string) (map[string]any, error) {
	e, err := model.ReadEmbedding(files)
	switch {
	case errors.Is(err, model.ErrNoEmbedding):
		return nil, nil
	case err != nil:
		return nil, err
	case !e.Normalize:
		return nil, arch.Unsupported(errors.New("modules.json: GGUF has no key for embeddings that are not normalised"))
	}
	pooling := map[model.Pooling]uint32{model.PoolMean: 1, model.PoolLast: 3}[e.Pooling]
	return map[string]any{name + ".pooling_type": pooling}, nil
}

// samplingKeys holds the recommended sampling, none if that is to take the best token.
func samplingKeys(g *arch.GenerationDefaults) map[string]any {
	const p = "general.sampling."
	keys := map[string]any{}
	if g.RepetitionPenalty != 1 {
		keys[p+"penalty_repeat"] = float32(g.RepetitionPenalty)
	}
	if !g.DoSample {
		return keys
	}
	keys[p+"temp"] = float32(g.Temperature)
	if g.TopK > 0 {
		keys[p+"top_k"] = int32(g.TopK)
	}
	if g.TopP < 1 {
		keys[p+"top_p"] = float32(g.TopP)
	}
	if g.MinP > 0 {
		keys[p+"min_p"] = float32(g.MinP)
	}
	return keys
}

// folderInputs returns the tensors of a GGUF file of a folder's model.
func folderInputs(cfg *arch.Config, w *weights.Weights, vectors map[string][]float32) (list []*input) {
	tensors := map[arch.GGUFPart]tensor.Tensor{
		{Role: arch.RoleEmbed}: w.Embed, {Role: arch.RoleLastNorm}: w.Norm, {Role: arch.RoleHead}: w.Head,
	}
	for at := range w.Layers {
		w.Layers[at].Each(func(role arch.Role, t *tensor.Tensor) { tensors[arch.GGUFPart{Role: role, Layer: at}] = *t })
		w.Layers[at].EachExpert(func(role arch.Role, x int, t *tensor.Tensor) {
			tensors[arch.GGUFPart{Role: role, Layer: at, Expert: x}] = *t
		})
	}
	for _, t := range cfg.GGUFTensors() {
		s := &input{name: t.Name, shape: t.Shape}
		var parts []part
		for _, p := range t.Parts {
			x := part{role: p.Role, t: tensors[p]}
			if p.Role.IsNorm() {
				x.offset = cfg.Scalars.NormOffset
			}
			parts = append(parts, x)
			s.bytes += int64(len(x.t.Data))
		}
		s.typ = storedTypes[parts[0].t.Type]
		if len(t.Shape) == 1 || strings.Contains(t.Name, "ffn_gate_inp") {
			s.typ = gguf.F32
		}
		width, row := s.width(), func(part *part, dst []float32, i int) {
			part.row(dst, cfg.GGUFRow(part.role, i))
		}
		if len(t.Shape) == 1 { // each element is a row of its tensor
			width = 1
			if parts[0].role == arch.RoleSharedMix {
				width = s.width()
			}
		}
		s.rows = func(dst []float32, from, n int) error {
			for i := range len(dst) / width {
				at := from*(s.width()/width) + i
				p := 0
				for at >= parts[p].t.Shape[0] {
					at -= parts[p].t.Shape[0]
					p++
				}
				row(&parts[p], dst[i*width:(i+1)*width], at)
			}
			return nil
		}
		list = append(list, s)
	}
	for _, name := range slices.Sorted(maps.Keys(vectors)) {
		x := vectors[name]
		list = append(list, &input{name: name, typ: gguf.F32, shape: []int{len(x)}, bytes: 0, rows: func(dst []float32, _, _ int) error {
			copy(dst, x)
			return nil
		}})
	}
	return list
}

// storedTypes are the types in GGUF of tensors in folders.
var storedTypes = map[tensor.Type]gguf.Type{tensor.F32: gguf.F32, tensor.F16: gguf.F16, tensor.BF16: gguf.BF16}

// part is a tensor whose rows are those of a larger one.
type part struct {
	role   arch.Role
	t      tensor.Tensor
	offset float32 // added to its elements
}

// row sets dst to a row; each element of a vector is one.
func (p *part) row(dst []float32, i int) {
	typ, width := p.t.Type, len(dst)
	typ.Widen(dst, p.t.Data[typ.Bytes(i*width):])
	if p.offset != 0 { // else -0 would change
		for j := range dst {
			dst[j] += p.offset
		}
	}
}
