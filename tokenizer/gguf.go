package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Metadata holds the metadata of a GGUF file by key; *gguf.File implements it.
type Metadata interface {
	Has(key string) bool
	Uint(key string) (uint64, error)
	Bool(key string) (bool, error)
	Text(key string) (string, error)
	Texts(key string) ([]string, error)
	Ints(key string) ([]int64, error)
	Floats(key string) ([]float64, error)
}

const ggufPrefix = "tokenizer.ggml."

// FromGGUF reads the tokenizer that the metadata of a GGUF file describes: a byte-level
// vocabulary with merges, whose pre-tokenizer must be one that [GGUFPreTokenizer] knows,
// or pieces with scores as in SentencePiece. The errors of kinds that are not supported
// wrap [errors.ErrUnsupported].
//
// load makes its tables when it is first called, which takes longer than opening a model,
// and checks the tokens against each other. It no longer needs the metadata.
func FromGGUF(m Metadata) (load func() (*Tokenizer, error), err error) {
	const attempt = "read tokenizer of GGUF metadata: %w"
	made, err := fromGGUF(m)
	if err != nil {
		return nil, fmt.Errorf(attempt, err)
	}
	return sync.OnceValues(func() (*Tokenizer, error) {
		t, err := made()
		if err != nil {
			return nil, fmt.Errorf(attempt, err)
		}
		return t, nil
	}), nil
}

// maker makes a tokenizer from metadata that have been read.
type maker func() (*Tokenizer, error)

func fromGGUF(m Metadata) (maker, error) {
	v, err := readGGUF(m)
	if err != nil {
		return nil, err
	}
	kind, err := m.Text(ggufPrefix + "model")
	if err != nil {
		return nil, err
	}
	var made maker
	addBOS := false // unless the file says otherwise
	switch kind {
	case "gpt2":
		made, addBOS, err = v.byteLevel()
	case "gemma4":
		made, err = v.escaped()
		addBOS = true
	case "llama":
		made, err = v.sentencePiece()
		addBOS = true
	default:
		err = unsupported("key %q: vocabulary of type %q, expected gpt2, gemma4 or llama", ggufPrefix+"model", kind)
	}
	if err != nil {
		return nil, err
	}
	return v.around(made, addBOS)
}

// ggufVocabulary holds the tokens of a file and their types.
type ggufVocabulary struct {
	m      Metadata
	tokens []string
	kinds  []int64 // nil: all normal
}

func readGGUF(m Metadata) (*ggufVocabulary, error) {
	v := &ggufVocabulary{m: m}
	var err error
	if v.tokens, err = m.Texts(ggufPrefix + "tokens"); err != nil {
		return nil, err
	}
	if len(v.tokens) > maxID+1 {
		return nil, fmt.Errorf("found %d tokens, expected at most %d", len(v.tokens), maxID+1)
	}
	if !m.Has(ggufPrefix + "token_type") {
		return v, nil
	}
	if v.kinds, err = m.Ints(ggufPrefix + "token_type"); err != nil {
		return nil, err
	}
	if len(v.kinds) != len(v.tokens) {
		return nil, fmt.Errorf("found %d types of %d tokens", len(v.kinds), len(v.tokens))
	}
	return v, nil
}

// kind returns the type of a token, of those that SentencePiece has.
func (v *ggufVocabulary) kind(id int) int64 {
	if v.kinds == nil {
		return typeNormal
	}
	return v.kinds[id]
}

// special returns the id of a special token, none if the file names none.
func (v *ggufVocabulary) special(key string) (int32, error) {
	key = ggufPrefix + key
	if !v.m.Has(key) {
		return none, nil
	}
	n, err := v.m.Uint(key)
	if err != nil {
		return none, err
	}
	if n >= uint64(len(v.tokens)) {
		return none, fmt.Errorf("key %q: found token %d of %d", key, n, len(v.tokens))
	}
	return int32(n), nil
}

// flag returns a boolean, def if the file does not say.
func (v *ggufVocabulary) flag(key string, def bool) (bool, error) {
	if !v.m.Has(ggufPrefix + key) {
		return def, nil
	}
	return v.m.Bool(ggufPrefix + key)
}

// around sets the special tokens of a tokenizer and what AddSpecial adds.
func (v *ggufVocabulary) around(made maker, addBOS bool) (maker, error) {
	bos, err := v.special("bos_token_id")
	if err != nil {
		return nil, err
	}
	eos, err := v.special("eos_token_id")
	if err != nil {
		return nil, err
	}
	if addBOS, err = v.flag("add_bos_token", addBOS); err != nil {
		return nil, err
	}
	addEOS, err := v.flag("add_eos_token", false)
	if err != nil {
		return nil, err
	}
	return func() (*Tokenizer, error) {
		t, err := made()
		if err != nil {
			return nil, err
		}
		t.format, t.bos, t.eos = "GGUF", bos, eos
		if addBOS && bos != none {
			t.prefix = []int32{bos}
		}
		if addEOS && eos != none {
			t.suffix = []int32{eos}
		}
		return t, nil
	}, nil
}

// byteLevel reads the tokenizer of a byte-level vocabulary with merges, and reports
// whether texts begin with BOS by default.
func (v *ggufVocabulary) byteLevel() (maker, bool, error) {
	name := "default"
	if v.m.Has(ggufPrefix + "pre") {
		var err error
		if name, err = v.m.Text(ggufPrefix + "pre"); err != nil {
			return nil, false, err
		}
	}
	pre, err := GGUFPreTokenizer(name)
	if err != nil {
		return nil, false, err
	}
	made, err := v.withMerges(pre, hfModel{IgnoreMerges: pre.IgnoreMerges})
	return made, pre.AddBOS, err
}

// escaped reads the tokenizer of a vocabulary with merges whose pieces are text in
// which blanks are spaceMark.
func (v *ggufVocabulary) escaped() (maker, error) {
	unk, err := v.special("unknown_token_id")
	if err != nil {
		return nil, err
	}
	model := hfModel{ByteFallback: true, FuseUnk: true}
	if unk != none {
		model.UnkToken = &v.tokens[unk]
	}
	return v.withMerges(GGUFPre{
		Normalizer:   `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`,
		PreTokenizer: splitJSON(`[^\n]+|[\n]+`),
		Decoder:      `{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]}`,
	}, model)
}

// withMerges reads the tokenizer of a vocabulary with merges as tokenizer.json has it.
func (v *ggufVocabulary) withMerges(pre GGUFPre, model hfModel) (maker, error) {
	f := hfFile{model: model}
	var err error
	if f.model.mergeLines, err = v.m.Texts(ggufPrefix + "merges"); err != nil {
		return nil, err
	}
	for _, part := range []struct {
		text string
		into **hfPart
	}{{pre.Normalizer, &f.normalizer}, {pre.PreTokenizer, &f.preTokenizer}, {pre.Decoder, &f.decoder}} {
		if part.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(part.text), part.into); err != nil {
			return nil, err
		}
	}
	return func() (*Tokenizer, error) {
		if err := v.entries(&f); err != nil {
			return nil, err
		}
		return f.build(&config{})
	}, nil
}

// entries sets the tokens of f. Unused tokens are padding by converters: no text becomes
// one.
func (v *ggufVocabulary) entries(f *hfFile) error {
	f.model.tokens = make([]hfToken, 0, len(v.tokens))
	for id, name := range v.tokens {
		kind := v.kind(id)
		if kind == typeUnused {
			continue
		}
		f.model.tokens = append(f.model.tokens, hfToken{name, int32(id)})
		if kind == typeControl || kind == typeUser || kind == typeUnknown {
			n, normalized := int64(id), false
			f.added = append(f.added, addedTokenEntry{ID: &n, Content: name, Special: kind != typeUser, Normalized: &normalized})
		}
	}
	if len(f.added) > maxAdded {
		return fmt.Errorf("found %d control and user-defined tokens, expected at most %d", len(f.added), maxAdded)
	}
	return nil
}

// sentencePiece reads the tokenizer of a vocabulary of pieces with scores.
func (v *ggufVocabulary) sentencePiece() (maker, error) {
	scores, err := v.m.Floats(ggufPrefix + "scores")
	if err != nil {
		return nil, err
	}
	if len(scores) != len(v.tokens) {
		return nil, fmt.Errorf("found %d scores of %d tokens", len(scores), len(v.tokens))
	}
	sp := &spmModel{
		pieces:  make([]spmPiece, len(v.tokens)),
		trainer: spmTrainer{modelType: modelBPE, unkSurface: " \u2047 "},
		rules:   spmRules{escape: true},
	}
	if sp.rules.dummyPrefix, err = v.flag("add_space_prefix", true); err != nil {
		return nil, err
	}
	if sp.rules.trimSpaces, err = v.flag("remove_extra_whitespaces", false); err != nil {
		return nil, err
	}
	unk, err := v.special("unknown_token_id")
	if err != nil {
		return nil, err
	}
	stripped, err := v.strippedRight()
	if err != nil {
		return nil, err
	}
	return func() (*Tokenizer, error) {
		if err := v.pieces(sp, scores, unk); err != nil {
			return nil, err
		}
		// As in transformers, the text after a special token gets a blank, too.
		t, err := newSPM(sp, &config{}, true)
		if err == nil && stripped {
			t.stripRight()
		}
		return t, err
	}, nil
}

// pieces sets the pieces of sp. unk is the unknown token, none if the file names none.
func (v *ggufVocabulary) pieces(sp *spmModel, scores []float64, unk int32) error {
	hasUnknown := slices.Contains(v.kinds, typeUnknown)
	for id, text := range v.tokens {
		p := spmPiece{text: text, score: float32(scores[id]), kind: uint64(v.kind(id))}
		if int32(id) == unk && !hasUnknown {
			p.kind = typeUnknown
		}
		if p.kind == typeByte {
			sp.trainer.byteFallback = true
		}
		if p.kind != typeUnused {
			if err := p.check(id); err != nil {
				return err
			}
		}
		sp.pieces[id] = p
	}
	return nil
}

// strippedRight reports whether special tokens take the blanks that follow them. Those of
// Phi-3 do, whose template writes them; GGUF does not say so.
func (v *ggufVocabulary) strippedRight() (bool, error) {
	const key = "general.architecture"
	if !v.m.Has(key) {
		return false, nil
	}
	arch, err := v.m.Text(key)
	return arch == "phi3", err
}

// stripRight makes the special tokens of Phi-3 take the blanks that follow them.
func (t *Tokenizer) stripRight() {
	for i := range t.added {
		switch a := &t.added[i]; a.content {
		case "<s>", "<unk>", "<|endoftext|>":
		default:
			a.rstrip = a.special
		}
	}
	t.finish(&config{})
}

// GGUFPre says how a vocabulary of GGUF splits text, as parts of tokenizer.json.
type GGUFPre struct {
	PreTokenizer string // JSON
	Normalizer   string // JSON; empty: none
	Decoder      string // JSON
	IgnoreMerges bool   // a word that is a token is that token
	AddBOS       bool   // texts begin with BOS unless the file says otherwise
}

// GGUFPreTokenizer returns the pre-tokenizer of byte-level vocabularies that GGUF files
// call name (tokenizer.ggml.pre). An error that wraps [errors.ErrUnsupported] lists the
// names that are known.
func GGUFPreTokenizer(name string) (GGUFPre, error) {
	for _, p := range ggufPre {
		if slices.Contains(p.names, name) {
			p.pre.Decoder = byteLevelJSON(true)
			return p.pre, nil
		}
	}
	var names []string
	for _, p := range ggufPre {
		names = append(names, p.names...)
	}
	slices.Sort(names)
	return GGUFPre{}, fmt.Errorf("key %q: pre-tokenizer %q is not known, expected one of %s: %w",
		ggufPrefix+"pre", name, strings.Join(names, ", "), errors.ErrUnsupported)
}

func byteLevelJSON(regex bool) string {
	return fmt.Sprintf(`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":%t}`, regex)
}

func splitJSON(regex string) string {
	text, _ := json.Marshal(regex) // a string always encodes
	return fmt.Sprintf(`{"type":"Split","pattern":{"Regex":%s},"behavior":"Isolated","invert":false}`, text)
}

// words is a sequence of splits, then the byte-level alphabet.
func words(regexes ...string) string {
	var steps []string
	for _, r := range regexes {
		steps = append(steps, splitJSON(r))
	}
	return `{"type":"Sequence","pretokenizers":[` + strings.Join(append(steps, byteLevelJSON(false)), ",") + `]}`
}

// Parts of the patterns below.
const (
	english  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	ending   = `\s*[\r\n]+|\s+(?!\S)|\s+`
	upper    = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lower    = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	cjk      = `[一-龥぀-ゟ゠-ヿ]+`
	han      = `[一-龥ࠀ-一가-퟿]+`
	before   = `[^\r\n\p{L}\p{N}]?`
	symbols  = `| ?[^\s\p{L}\p{N}]+[\r\n]*|`
	symbols2 = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|`
)

// Patterns of published tokenizers.
const (
	llama3Words  = english + `|` + before + `\p{L}+|\p{N}{1,3}` + symbols + ending
	qwen2Words   = english + `|` + before + `\p{L}+|\p{N}` + symbols + ending
	qwen35Words  = english + `|` + before + `[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|` + ending
	tekkenWords  = before + upper + `*` + lower + `+|` + before + upper + `+` + lower + `*|\p{N}` + symbols2 + ending
	o200kWords   = before + upper + `*` + lower + `+` + english + `?|` + before + upper + `+` + lower + `*` + english + `?|\p{N}{1,3}` + symbols2 + ending
	deepseekTail = `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|` + ending
)

const nfc = `{"type":"NFC"}`

// ggufPre holds the pre-tokenizers by their names in GGUF. The names are those of
// llama.cpp's src/llama-vocab.cpp (llama_vocab::impl::load), the patterns those of the
// tokenizer.json of the models. Left out are a.x-4.0, megrez, mellum, minerva-7b and
// pixtral, as llama.cpp's pattern for them may not be that of the model's own
// tokenizer.json.
var ggufPre = []struct {
	names []string
	pre   GGUFPre
}{
	{[]string{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "gigachat", "granite-docling"},
		GGUFPre{PreTokenizer: byteLevelJSON(true)}},
	{[]string{"smollm", "refact", "starcoder", "command-r", "codeshell", "exaone"},
		GGUFPre{PreTokenizer: `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},` + byteLevelJSON(true) + `]}`}},
	{[]string{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "midm-2.0", "lfm2", "jina-v5-nano"},
		GGUFPre{PreTokenizer: words(llama3Words), IgnoreMerges: true, AddBOS: true}},
	{[]string{"glm4", "glm5"}, GGUFPre{PreTokenizer: words(llama3Words), IgnoreMerges: true}},
	// Converters also gave the name smaug-bpe to Llama 3 itself.
	{[]string{"smaug-bpe", "dbrx", "chatglm-bpe"}, GGUFPre{PreTokenizer: words(llama3Words)}},
	{[]string{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2"}, GGUFPre{PreTokenizer: words(qwen2Words), Normalizer: nfc}},
	{[]string{"hunyuan", "solar-open", "stablelm2"}, GGUFPre{PreTokenizer: words(qwen2Words)}},
	{[]string{"qwen35"}, GGUFPre{PreTokenizer: words(qwen35Words), Normalizer: nfc}},
	{[]string{"tekken"}, GGUFPre{PreTokenizer: words(tekkenWords), IgnoreMerges: true, AddBOS: true}},
	{[]string{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, GGUFPre{PreTokenizer: words(o200kWords)}},
	{[]string{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, GGUFPre{PreTokenizer: words(`\p{N}{1,3}`, cjk, deepseekTail)}},
	{[]string{"deepseek-coder"}, GGUFPre{PreTokenizer: words(`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, han, `\p{N}`)}},
	{[]string{"seed-coder"}, GGUFPre{PreTokenizer: words(english + `|` + before + `\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|` + ending)}},
}
