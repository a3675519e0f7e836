package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/tokenizer"
)

// Kinds of tokens, tokenizer.ggml.token_type.
const (
	tokenNormal = 1 + iota
	tokenUnknown
	tokenControl
	tokenUser
	tokenUnused
	tokenByte
)

// part is a step of tokenizer.json.
type part map[string]any

func sequence(kind string, parts ...part) part { return part{"type": "Sequence", kind: parts} }

// vocabulary is what a file says about its tokens.
type vocabulary struct {
	f      *gguf.File
	tokens []string
	kinds  []int64 // nil: all normal
}

const (
	ggml      = "tokenizer.ggml."
	tokensKey = ggml + "tokens"
	kindsKey  = ggml + "token_type"
)

// metadata are a file's with the lists that have been read.
type metadata struct {
	*gguf.File
	v *vocabulary
}

func (m metadata) Texts(key string) ([]string, error) {
	if key == tokensKey {
		return m.v.tokens, nil
	}
	return m.File.Texts(key)
}

func (m metadata) Ints(key string) ([]int64, error) {
	if key == kindsKey {
		return m.v.kinds, nil
	}
	return m.File.Ints(key)
}

func readVocabulary(f *gguf.File) (*vocabulary, error) {
	v := &vocabulary{f: f}
	var err error
	if v.tokens, err = f.Texts(tokensKey); err != nil {
		return nil, err
	}
	if f.Has(kindsKey) {
		if v.kinds, err = f.Ints(kindsKey); err != nil {
			return nil, err
		}
		if len(v.kinds) != len(v.tokens) {
			return nil, fmt.Errorf("%d types of %d tokens", len(v.kinds), len(v.tokens))
		}
	}
	return v, nil
}

func (v *vocabulary) kind(id int) int64 {
	if v.kinds == nil {
		return tokenNormal
	}
	return v.kinds[id]
}

// id returns a special token's id, -1 if the file names none.
func (v *vocabulary) id(key string) (int, error) {
	if !v.f.Has(ggml + key) {
		return -1, nil
	}
	n, err := v.f.Uint(ggml + key)
	if err != nil {
		return -1, err
	}
	if n >= uint64(len(v.tokens)) {
		return -1, fmt.Errorf("key %q: token %d of %d", ggml+key, n, len(v.tokens))
	}
	return int(n), nil
}

// flag returns a boolean, def if the file does not say.
func (v *vocabulary) flag(key string, def bool) (bool, error) {
	if !v.f.Has(ggml + key) {
		return def, nil
	}
	return v.f.Bool(ggml + key)
}

// special are the tokens with a special role.
type special struct {
	bos, eos, unknown, pad int // -1: none
	ends                   []int
}

func (v *vocabulary) special() (s special, err error) {
	for key, to := range map[string]*int{
		"bos_token_id": &s.bos, "eos_token_id": &s.eos, "unknown_token_id": &s.unknown, "padding_token_id": &s.pad,
	} {
		if *to, err = v.id(key); err != nil {
			return s, err
		}
	}
	for _, key := range []string{"eos_token_id", "eot_token_id", "eom_token_id"} {
		id, err := v.id(key)
		if err != nil {
			return s, err
		}
		if id >= 0 && !slices.Contains(s.ends, id) {
			s.ends = append(s.ends, id)
		}
	}
	return s, nil
}

// tokenizer makes tokenizer.json.
func (v *vocabulary) tokenizer(s special) (file part, err error) {
	kind, err := v.f.Text(ggml + "model")
	if err != nil {
		return nil, err
	}
	var bos bool
	switch kind {
	case "gpt2":
		file, bos, err = v.byteLevel()
	case "llama":
		file, err = v.sentencePiece(s)
		bos = true
	default:
		err = fmt.Errorf("key %q: %q, expected gpt2 or llama: %w", ggml+"model", kind, ErrUnsupported)
	}
	if err != nil {
		return nil, err
	}
	if bos, err = v.flag("add_bos_token", bos); err != nil {
		return nil, err
	}
	eos, err := v.flag("add_eos_token", false)
	if err != nil {
		return nil, err
	}
	bos, eos = bos && s.bos >= 0, eos && s.eos >= 0
	if bos || eos {
		file["post_processor"] = v.around(s, bos, eos)
	}
	file["version"], file["truncation"], file["padding"] = "1.0", nil, nil
	file["added_tokens"] = v.added()
	return file, nil
}

// config makes tokenizer_config.json.
func (v *vocabulary) config(s special, maxPositions int) (part, error) {
	config := part{
		"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false, "model_max_length": maxPositions,
	}
	for name, id := range map[string]int{"bos_token": s.bos, "eos_token": s.eos, "unk_token": s.unknown, "pad_token": s.pad} {
		if id >= 0 {
			config[name] = v.tokens[id]
		}
	}
	template, err := v.templates()
	if template != nil {
		config["chat_template"] = template
	}
	return config, err
}

const templateKey = "tokenizer.chat_template" // with ".NAME" for a named one

// templates returns the chat template, nil if there is none, or if there are named ones a list of all.
func (v *vocabulary) templates() (any, error) {
	if !v.f.Has(templateKey) {
		return nil, nil
	}
	text, err := v.f.Text(templateKey)
	if err != nil {
		return nil, err
	}
	names := []string{"tool_use"}
	if v.f.Has("tokenizer.chat_templates") {
		if names, err = v.f.Texts("tokenizer.chat_templates"); err != nil {
			return nil, err
		}
	}
	list := []part{{"name": "default", "template": text}}
	for _, name := range names {
		if key := templateKey + "." + name; v.f.Has(key) {
			text, err := v.f.Text(key)
			if err != nil {
				return nil, err
			}
			list = append(list, part{"name": name, "template": text})
		}
	}
	if len(list) == 1 {
		return text, nil
	}
	return list, nil
}

// around puts tokens before and after a text.
func (v *vocabulary) around(s special, bos, eos bool) part {
	used := part{}
	token := func(id int) part {
		name := v.tokens[id]
		used[name] = part{"id": name, "ids": []int{id}, "tokens": []string{name}}
		return part{"SpecialToken": part{"id": name, "type_id": 0}}
	}
	text := func(name string) part { return part{"Sequence": part{"id": name, "type_id": 0}} }
	var single []part
	if bos {
		single = append(single, token(s.bos))
	}
	single = append(single, text("A"))
	if eos {
		single = append(single, token(s.eos))
	}
	return part{
		"type": "TemplateProcessing", "single": single, "pair": append(slices.Clone(single), text("B")), "special_tokens": used,
	}
}

// added lists the tokens that are matched whole in a text.
func (v *vocabulary) added() []part {
	out := []part{}
	for id, name := range v.tokens {
		if k := v.kind(id); k == tokenControl || k == tokenUser || k == tokenUnknown {
			out = append(out, part{
				"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
				"normalized": false, "special": k != tokenUser,
			})
		}
	}
	return out
}

// vocab maps pieces that can result from merges to ids. Unused pieces are
// padding written by converters; they are left out, so that no text becomes one.
func (v *vocabulary) vocab() (map[string]int, error) {
	out := make(map[string]int, len(v.tokens))
	for id, name := range v.tokens {
		if v.kind(id) == tokenUnused {
			continue
		}
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("token %d: %q is not text", id, name)
		}
		if at, ok := out[name]; ok {
			return nil, fmt.Errorf("tokens %d and %d are both %q", at, id, name)
		}
		out[name] = id
	}
	return out, nil
}

// byteLevel makes the tokenizer of a byte-level vocabulary with merges, and
// reports whether texts begin with BOS by default.
func (v *vocabulary) byteLevel() (part, bool, error) {
	name := "default"
	if v.f.Has(ggml + "pre") {
		var err error
		if name, err = v.f.Text(ggml + "pre"); err != nil {
			return nil, false, err
		}
	}
	pre, err := tokenizer.GGUFPreTokenizer(name)
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	vocab, err := v.vocab()
	if err != nil {
		return nil, false, err
	}
	lines, err := v.f.Texts(ggml + "merges")
	if err != nil {
		return nil, false, err
	}
	merges := make([][2]string, len(lines))
	for i, line := range lines {
		// A piece of a byte-level vocabulary contains no space.
		a, b, ok := strings.Cut(line, " ")
		if !ok || a == "" || b == "" {
			return nil, false, fmt.Errorf("merge %d: found %q, expected two tokens with a blank between them", i, line)
		}
		merges[i] = [2]string{a, b}
	}
	file := part{
		"normalizer": nil, "pre_tokenizer": json.RawMessage(pre.PreTokenizer), "post_processor": nil, "decoder": json.RawMessage(pre.Decoder),
		"model": part{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": pre.IgnoreMerges, "vocab": vocab, "merges": merges,
		},
	}
	if pre.Normalizer != "" {
		file["normalizer"] = json.RawMessage(pre.Normalizer)
	}
	return file, pre.AddBOS, nil
}

// maxPiece bounds the pieces that are split in all ways, in bytes.
const maxPiece = 256

// sentencePiece makes the tokenizer of a vocabulary of pieces with scores:
// every split of a piece into two others becomes a merge, best scores first.
func (v *vocabulary) sentencePiece(s special) (part, error) {
	scores, err := v.f.Floats(ggml + "scores")
	if err != nil {
		return nil, err
	}
	if len(scores) != len(v.tokens) {
		return nil, fmt.Errorf("%d scores of %d tokens", len(scores), len(v.tokens))
	}
	vocab, err := v.vocab()
	if err != nil {
		return nil, err
	}
	type merge struct {
		left, right string
		score       float64
	}
	var merges []merge
	for id, name := range v.tokens {
		if v.kind(id) != tokenNormal {
			continue
		}
		if len(name) > maxPiece {
			return nil, fmt.Errorf("token %d has %d bytes, expected at most %d", id, len(name), maxPiece)
		}
		from := len(merges)
		for at := range name {
			if at == 0 {
				continue
			}
			l, okL := vocab[name[:at]]
			r, okR := vocab[name[at:]]
			if okL && okR && v.kind(l) == tokenNormal && v.kind(r) == tokenNormal {
				merges = append(merges, merge{name[:at], name[at:], scores[id]})
			}
		}
		slices.SortFunc(merges[from:], func(a, b merge) int {
			return cmp.Or(vocab[b.left]-vocab[a.left], vocab[b.right]-vocab[a.right])
		})
	}
	slices.SortStableFunc(merges, func(a, b merge) int { return cmp.Compare(b.score, a.score) })
	pairs := make([][2]string, len(merges))
	for i, m := range merges {
		pairs[i] = [2]string{m.left, m.right}
	}
	space, err := v.flag("add_space_prefix", true)
	if err != nil {
		return nil, err
	}
	normalizers := []part{{"type": "Replace", "pattern": part{"String": " "}, "content": "▁"}}
	decoders := []part{
		{"type": "Replace", "pattern": part{"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
	}
	if space {
		normalizers = append([]part{{"type": "Prepend", "prepend": "▁"}}, normalizers...)
		decoders = append(decoders, part{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	model := part{
		"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
		"fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": pairs,
	}
	unknown := s.unknown
	if unknown < 0 && v.kinds != nil {
		unknown = slices.Index(v.kinds, tokenUnknown)
	}
	if unknown >= 0 {
		model["unk_token"] = v.tokens[unknown]
	}
	return part{
		"normalizer": sequence("normalizers", normalizers...), "pre_tokenizer": nil, "post_processor": nil,
		"decoder": sequence("decoders", decoders...), "model": model,
	}, nil
}
