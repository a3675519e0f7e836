package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// GGUF returns the metadata of a GGUF file of the given general.architecture that describe t
// to [FromGGUF]: values of type string, bool, uint32, []string, []int32 and []float32 by key.
// rows is the number of tokens that the model has; those that t does not have are listed as
// unused. Before it returns, the metadata are read back and compared with t.
//
// An error that wraps [errors.ErrUnsupported] names what GGUF cannot say: a way to split text
// without a name there, a normalizer, tokens that take the blanks beside them.
//
// Vocabularies with pieces of text, and not of bytes, get scores in the order of their merges.
// In GGUF, a blank is put before each stretch of text between special tokens, whatever t does.
func (t *Tokenizer) GGUF(arch string, rows int) (map[string]any, error) {
	m, err := t.toGGUF(arch, rows)
	if err == nil {
		err = t.readBack(m)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer as GGUF metadata: %w", err)
	}
	delete(m, architectureKey)
	return m, nil
}

func (t *Tokenizer) toGGUF(arch string, rows int) (madeGGUF, error) {
	if rows > maxID+1 {
		return nil, fmt.Errorf("the model has %d tokens, expected at most %d", rows, maxID+1)
	}
	if t.size > rows {
		return nil, fmt.Errorf("found %d tokens, but the model has %d", t.size, rows)
	}
	m := madeGGUF{architectureKey: arch}
	bos := t.bos
	switch {
	case len(t.prefix) == 1 && (bos == none || bos == t.prefix[0]):
		bos = t.prefix[0]
	case len(t.prefix) > 0:
		return nil, unsupported("texts begin with the tokens %v, expected BOS or none", t.prefix)
	}
	if len(t.suffix) > 1 || len(t.suffix) == 1 && t.suffix[0] != t.eos {
		return nil, unsupported("texts end with the tokens %v, expected EOS or none", t.suffix)
	}
	for key, id := range map[string]int32{"bos_token_id": bos, "eos_token_id": t.eos, "unknown_token_id": t.model.unk} {
		if id != none {
			m[ggufPrefix+key] = uint32(id)
		}
	}
	m[ggufPrefix+"add_bos_token"], m[ggufPrefix+"add_eos_token"] = len(t.prefix) > 0, len(t.suffix) > 0
	var err error
	if t.model.byteLevel {
		err = t.byteLevelGGUF(m)
	} else {
		err = t.piecesGGUF(m)
	}
	if err != nil {
		return nil, err
	}
	t.listGGUF(m, rows)
	if !t.model.byteLevel {
		m[ggufPrefix+"scores"] = t.scores(rows)
	}
	return m, nil
}

// listGGUF sets the tokens and their types.
func (t *Tokenizer) listGGUF(m madeGGUF, rows int) {
	tokens, kinds := make([]string, rows), make([]int32, rows)
	users := map[int32]bool{}
	if t.users != nil {
		for _, a := range t.users.tokens {
			users[a.id] = true
		}
	}
	bytes := map[int32]bool{}
	if !t.model.byteLevel {
		for _, id := range t.model.byteID {
			bytes[id] = true
		}
	}
	for i := range tokens {
		id := int32(i)
		tokens[i] = t.Piece(id)
		switch _, added := t.addedByID[id]; {
		case tokens[i] == "":
			tokens[i], kinds[i] = t.unusedName(i), typeUnused
		case id == t.model.unk:
			kinds[i] = typeUnknown
		case t.IsSpecial(id):
			kinds[i] = typeControl
		case added || users[id]:
			kinds[i] = typeUser
		case bytes[id]:
			kinds[i] = typeByte
		default:
			kinds[i] = typeNormal
		}
	}
	m[ggufPrefix+"tokens"], m[ggufPrefix+"token_type"] = tokens, kinds
}

// unusedName returns the name of a token that the tokenizer does not have.
func (t *Tokenizer) unusedName(id int) string {
	name := fmt.Sprintf("[PAD%d]", id)
	for {
		if _, ok := t.ID(name); !ok {
			return name
		}
		name = "[" + name + "]"
	}
}

// merges returns all merges in the order in which they apply.
func (t *Tokenizer) merges() []merge {
	list := slices.Collect(t.model.merges.all)
	slices.SortFunc(list, func(a, b merge) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.left, b.left), cmp.Compare(a.right, b.right))
	})
	return list
}

// byteLevelGGUF sets how a byte-level vocabulary splits and merges.
func (t *Tokenizer) byteLevelGGUF(m madeGGUF) error {
	name, err := t.preName()
	if err != nil {
		return err
	}
	m[ggufPrefix+"model"], m[ggufPrefix+"pre"] = "gpt2", name
	list := t.merges()
	lines := make([]string, len(list))
	for i, x := range list {
		a, b := t.modelPiece(x.left), t.modelPiece(x.right)
		if strings.Contains(a+b, " ") {
			return unsupported("merge %d of %q and %q: a blank in a piece", i, a, b)
		}
		lines[i] = a + " " + b
	}
	m[ggufPrefix+"merges"] = lines
	return nil
}

// preName returns the name in GGUF of the way in which t splits text.
func (t *Tokenizer) preName() (string, error) {
	for _, p := range ggufPre {
		if p.pre.IgnoreMerges != t.model.ignoreMerges {
			continue
		}
		like, err := p.pre.steps()
		if err != nil {
			return "", err
		}
		if same(like.stages, t.stages) && same(like.normalizers, t.normalizers) {
			return p.names[0], nil
		}
	}
	return "", unsupported("the pre_tokenizer and normalizer of %s, with ignore_merges %t, have no name (key \"tokenizer.ggml.pre\") that is known here",
		t.format, t.model.ignoreMerges)
}

// steps returns a tokenizer with nothing but the steps of p.
func (p GGUFPre) steps() (*Tokenizer, error) {
	t := new(Tokenizer)
	var part hfPart
	err := json.Unmarshal([]byte(p.PreTokenizer), &part)
	if err == nil {
		t.stages, _, err = hfPreTokenizer(nil, part)
	}
	if err == nil && p.Normalizer != "" {
		part = hfPart{}
		if err = json.Unmarshal([]byte(p.Normalizer), &part); err == nil {
			t.normalizers, err = hfNormalizers(part)
		}
	}
	return t, err
}

// same reports whether two lists of steps do the same.
func same[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(a, b))
}

// piecesGGUF sets how a vocabulary of pieces of text is applied.
func (t *Tokenizer) piecesGGUF(m madeGGUF) error {
	prefix, trimmed, err := t.blanks()
	if err != nil {
		return err
	}
	switch {
	case t.model.unk == none:
		return unsupported("a vocabulary of pieces without an unknown token")
	case t.model.ignoreMerges:
		return unsupported("ignore_merges with a vocabulary of pieces")
	}
	m[ggufPrefix+"model"], m[ggufPrefix+"pre"] = "llama", "default"
	m[ggufPrefix+"add_space_prefix"], m[ggufPrefix+"remove_extra_whitespaces"] = prefix, trimmed
	return nil
}

// blanks reports whether a blank is put before a text, and whether superfluous ones are
// removed. It is an error if text is changed in another way than that blanks become spaceMark.
func (t *Tokenizer) blanks() (prefix, trimmed bool, err error) {
	marks := func(n normalizer) bool {
		r, ok := n.(replaceText)
		return ok && reflect.DeepEqual(r, replaceText{literal(" "), spaceMark})
	}
	steps, stages := t.normalizers, t.stages
	if len(steps) == 1 && len(stages) == 0 {
		if s, ok := steps[0].(spmNormal); ok && s.chars == nil && s.escape {
			return s.dummyPrefix, s.trimSpaces, nil
		}
	}
	if len(steps) > 0 {
		if p, ok := steps[0].(prependText); ok && p == spaceMark {
			prefix, steps = true, steps[1:]
		}
	}
	switch {
	case len(steps) == 1 && marks(steps[0]):
		// Gemma's split at blanks finds none: all have become marks.
		if len(stages) == 0 || same(stages, []preTokenizer{split{m: literal(" "), how: mergedWithPrevious}}) {
			return prefix, false, nil
		}
	case len(steps) == 0 && !prefix && len(stages) == 1:
		if s, ok := stages[0].(metaspace); ok && s.mark == spaceMark && !s.split {
			return s.scheme != prependNever, false, nil
		}
	}
	return false, false, unsupported("the normalizer and pre_tokenizer of %s do more than to mark blanks", t.format)
}

// scores returns the scores of a vocabulary of pieces: those that merge first have the highest.
// Tokens that nothing merges to come last.
func (t *Tokenizer) scores(rows int) []float32 {
	out := make([]float32, rows)
	for i := range out {
		out[i] = -float32(len(out))
	}
	next := 0
	for _, x := range t.merges() {
		if int(x.to) < rows && out[x.to] == -float32(len(out)) {
			out[x.to] = -float32(next)
			next++
		}
	}
	return out
}

// readBack returns an error if a reader of m has another tokenizer.
func (t *Tokenizer) readBack(m madeGGUF) error {
	load, err := FromGGUF(m)
	if err != nil {
		return err
	}
	like, err := load()
	if err != nil {
		return err
	}
	for _, a := range t.added {
		b := a
		if i, ok := like.addedByID[a.id]; ok {
			b = like.added[i]
		}
		if a.lstrip != b.lstrip || a.rstrip != b.rstrip || a.singleWord != b.singleWord {
			return unsupported("token %d %q: lstrip, rstrip or single_word", a.id, a.content)
		}
	}
	text := t.probe()
	for _, o := range []EncodeOptions{{SpecialAsText: true}, {AddSpecial: true, SpecialAsText: true}} {
		want, got := t.Encode(text, o), like.Encode(text, o)
		if !slices.Equal(want, got) {
			at := 0
			for at < min(len(want), len(got)) && want[at] == got[at] {
				at++
			}
			return unsupported("a reader would merge in another way: of a text of all tokens, token %d is another", at)
		}
	}
	return nil
}

// maxProbe bounds the text by which tokenizers are compared, in bytes.
const maxProbe = 1 << 20

// probe returns a text of the tokens of t.
func (t *Tokenizer) probe() string {
	var text strings.Builder
	for id := int32(0); int(id) < t.size && text.Len() < maxProbe; id++ {
		if _, added := t.addedByID[id]; !added {
			text.Write(t.TokenBytes(id))
		}
	}
	return strings.ToValidUTF8(text.String(), "")
}

const architectureKey = "general.architecture"

// madeGGUF are metadata that have been made; the lists are shared.
type madeGGUF map[string]any

func (m madeGGUF) Has(key string) bool { _, ok := m[key]; return ok }

// of returns the value of a key as a T.
func of[T any](m madeGGUF, key string) (T, error) {
	v, ok := m[key].(T)
	if !ok {
		return v, fmt.Errorf("key %q: found %T: %w", key, m[key], errors.ErrUnsupported)
	}
	return v, nil
}

func (m madeGGUF) Uint(key string) (uint64, error) {
	n, err := of[uint32](m, key)
	return uint64(n), err
}

func (m madeGGUF) Bool(key string) (bool, error)      { return of[bool](m, key) }
func (m madeGGUF) Text(key string) (string, error)    { return of[string](m, key) }
func (m madeGGUF) Texts(key string) ([]string, error) { return of[[]string](m, key) }

func (m madeGGUF) Ints(key string) ([]int64, error) {
	list, err := of[[]int32](m, key)
	return widened[int64](list), err
}

func (m madeGGUF) Floats(key string) ([]float64, error) {
	list, err := of[[]float32](m, key)
	return widened[float64](list), err
}

func widened[To int64 | float64, From int32 | float32](list []From) []To {
	out := make([]To, len(list))
	for i, x := range list {
		out[i] = To(x)
	}
	return out
}
