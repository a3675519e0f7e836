package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/tokenizer"
)

// ErrUnsupported says that a file is sound but holds a model of a kind that is not known
// here.
var ErrUnsupported = errors.New("not supported")

const (
	configName          = "config.json"
	generationName      = "generation_config.json"
	tokenizerName       = "tokenizer.json"
	tokenizerConfigName = "tokenizer_config.json"

	modulesName = "modules.json"
	poolingName = "pooling/config.json"
)

// Names lists the files that every model is described by, and EmbeddingNames those that a model
// of embeddings has beside them, in the form of sentence-transformers.
var (
	Names          = []string{configName, generationName, tokenizerName, tokenizerConfigName}
	EmbeddingNames = []string{modulesName, poolingName}
)

// Options say how a file is described.
type Options struct {
	// Type is the element type that config.json declares; the default is "bfloat16".
	Type string

	// Text asks for the vocabulary as tokenizer.json. Without it, the file system has no
	// such file but the tokenizer itself, as tokenizer.Load knows it.
	Text bool

	// Llama3 states the frequencies' divisors as parameters of Llama 3's scaling where
	// those reproduce them, as published configs do. Without it, and otherwise, they are
	// listed as they are.
	Llama3 bool
}

// Files returns the text files of the model as a file system.
func Files(f *gguf.File, o Options) (fs.FS, error) {
	c, err := readConfig(f, o)
	if err != nil {
		return nil, err
	}
	v, err := readVocabulary(f)
	if err != nil {
		return nil, err
	}
	if rows := c.integer("vocab_size"); len(v.tokens) > rows {
		return nil, fmt.Errorf("%d tokens, but token_embd.weight has %d rows", len(v.tokens), rows)
	}
	s, err := v.special()
	if err != nil {
		return nil, err
	}
	if s.bos >= 0 {
		c.set("bos_token_id", s.bos)
	}
	c.set("eos_token_id", s.ends)
	config, err := v.config(s, c.integer("max_position_embeddings"))
	if err != nil {
		return nil, err
	}
	g, err := readGeneration(f, s)
	if err != nil {
		return nil, err
	}
	texts := map[string]any{configName: c, generationName: g, tokenizerConfigName: config}
	if mode := poolingMode(f); mode != "" {
		texts[modulesName], texts[poolingName] = embeddingModules, map[string]bool{mode: true}
	}
	files := folder{texts: map[string][]byte{}}
	if o.Text {
		texts[tokenizerName], err = v.tokenizer(s)
	} else {
		files.tokenizer, err = tokenizer.FromGGUF(metadata{f, v})
	}
	if errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, ErrUnsupported) {
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return nil, err
	}
	for name, x := range texts {
		if files.texts[name], err = text(x); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return files, nil
}

// embeddingModules is modules.json of a model of embeddings. Files do not say whether vectors are
// normalised; the programs that use them do it by default.
var embeddingModules = []map[string]string{
	{"type": "sentence_transformers.models.Transformer", "path": ""},
	{"type": "sentence_transformers.models.Pooling", "path": "pooling"},
	{"type": "sentence_transformers.models.Normalize", "path": ""},
}

// poolingMode returns the member of the pooling module's config that pooling_type stands for,
// "" if the model is none of embeddings.
func poolingMode(f *gguf.File) string {
	arch, _ := f.Text("general.architecture")
	key := arch + ".pooling_type"
	if !f.Has(key) {
		return ""
	}
	switch kind, err := f.Uint(key); {
	case err != nil:
		return ""
	case kind == 1:
		return "pooling_mode_mean_tokens"
	case kind == 2:
		return "pooling_mode_cls_token"
	case kind == 3:
		return "pooling_mode_lasttoken"
	}
	return "" // none, or that of a ranker
}

// text formats a file.
func text(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return append(b, '\n'), err
}

// object is a JSON object whose members are in the order in which they were set.
type object []member

type member struct {
	key   string
	value any
}

func (o *object) set(key string, value any) {
	for i := range *o {
		if (*o)[i].key == key {
			(*o)[i].value = value
			return
		}
	}
	*o = append(*o, member{key, value})
}

// get returns the value of a key, nil if there is none.
func (o *object) get(key string) any {
	for _, m := range *o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// integer returns a member that is an int.
func (o *object) integer(key string) int {
	n, _ := o.get(key).(int)
	return n
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", m.key, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// number is a float32 written as its shortest decimal, so that 1e-05 is not
// 9.999999747378752e-06; it never looks like an integer.
type number float32

func (n number) MarshalJSON() ([]byte, error) {
	s := strconv.FormatFloat(float64(n), 'g', -1, 32)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return []byte(s), nil
}

// keys reads a file's values and keeps the first error.
type keys struct {
	f      *gguf.File
	prefix string // the architecture's
	err    error
}

func (k *keys) fail(err error) {
	if k.err == nil {
		k.err = err
	}
}

func (k *keys) has(key string) bool { return k.f.Has(k.prefix + key) }

// given reports whether the file has one of the architecture's keys, for keys whose 0 means
// the same as their absence.
func (k *keys) given(key string) bool {
	n, noInteger := k.f.Uint(k.prefix + key)
	x, noFloat := k.f.Float(k.prefix + key)
	return k.has(key) && (noInteger != nil || n != 0) && (noFloat != nil || x != 0)
}

// integer returns one of the architecture's values, from 1 to math.MaxInt32. An
// absent key gives def, or an error if def is 0.
func (k *keys) integer(key string, def int) int {
	if !k.has(key) && def != 0 {
		return def
	}
	key = k.prefix + key
	n, err := k.f.Uint(key)
	if err == nil && (n < 1 || n > math.MaxInt32) {
		err = fmt.Errorf("key %q: found %d, expected 1 to %d", key, n, math.MaxInt32)
	}
	if err != nil {
		k.fail(err)
		return 1
	}
	return int(n)
}

// perLayer is integer for a key that may list a value for each layer, which must be the same in
// all, as layers are alike.
func (k *keys) perLayer(key string, def int) int {
	list, err := k.f.Ints(k.prefix + key)
	if err == nil && len(list) == k.integer("block_count", 0) && list[0] >= 1 && list[0] <= math.MaxInt32 &&
		!slices.ContainsFunc(list, func(n int64) bool { return n != list[0] }) {
		return int(list[0])
	}
	return k.integer(key, def) // refuses another list
}

// float returns one of the architecture's values, a finite number above 0. An absent key
// gives def, or an error if def is 0.
func (k *keys) float(key string, def number) number {
	if !k.has(key) && def != 0 {
		return def
	}
	key = k.prefix + key
	x, err := k.f.Float(key)
	if err == nil && !(x > 0 && x < math.MaxFloat32) {
		err = fmt.Errorf("key %q: found %v, expected a number above 0", key, x)
	}
	if err != nil {
		k.fail(err)
	}
	return number(x)
}

// vector returns n finite numbers above 0 of a tensor of type F32.
func (k *keys) vector(name string, n int) []number {
	t := k.f.Tensor(name)
	if t == nil {
		k.fail(fmt.Errorf("tensor %q is missing", name))
		return nil
	}
	if t.Type != gguf.F32 || len(t.Shape) != 1 || t.Shape[0] != n {
		k.fail(fmt.Errorf("tensor %q: found %s %v, expected F32 [%d]", name, t.Type, t.Shape, n))
		return nil
	}
	x := make([]float32, n)
	if err := t.Rows(x, 0, 1); err != nil {
		k.fail(err)
	}
	out := make([]number, n)
	for i, v := range x {
		if !(v > 0 && v < math.MaxFloat32) {
			k.fail(fmt.Errorf("tensor %q: number %d is %v, expected a finite number above 0", name, i, v))
		}
		out[i] = number(v)
	}
	return out
}

// readGeneration returns generation_config.json: the ends of texts, and the sampling
// that the file recommends.
func readGeneration(f *gguf.File, s special) (*object, error) {
	g := &object{}
	if s.bos >= 0 {
		g.set("bos_token_id", s.bos)
	}
	g.set("eos_token_id", s.ends)
	if s.pad >= 0 {
		g.set("pad_token_id", s.pad)
	}
	const sampling = "general.sampling."
	for _, x := range []struct {
		key, name string
		whole     bool
	}{
		{"temp", "temperature", false}, {"top_k", "top_k", true}, {"top_p", "top_p", false}, {"min_p", "min_p", false},
		{"penalty_repeat", "repetition_penalty", false},
	} {
		key := sampling + x.key
		if !f.Has(key) {
			continue
		}
		var value any
		if x.whole {
			n, err := f.Uint(key)
			if err != nil || n > math.MaxInt32 {
				return nil, fmt.Errorf("key %q: expected an integer from 0", key)
			}
			value = int(n)
		} else {
			v, err := f.Float(key)
			if err != nil {
				return nil, err
			}
			if !(v >= 0 && v < math.MaxFloat32) {
				return nil, fmt.Errorf("key %q: found %v, expected a number from 0", key, v)
			}
			value = number(v)
		}
		if x.key == "temp" {
			g.set("do_sample", value.(number) > 0)
			if value.(number) == 0 {
				continue
			}
		}
		g.set(x.name, value)
	}
	return g, nil
}
