package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testgz"
)

// metadata is metadata of a GGUF file, as JSON has it.
type metadata map[string]any

func lookup[T any](m metadata, key string) (T, error) {
	v, ok := m[key]
	if !ok {
		var zero T
		return zero, fmt.Errorf("key %q is missing", key)
	}
	t, ok := v.(T)
	if !ok {
		return t, fmt.Errorf("key %q: found %T", key, v)
	}
	return t, nil
}

func list[T, E any](m metadata, key string, convert func(E) T) ([]T, error) {
	v, err := lookup[[]any](m, key)
	out := make([]T, 0, len(v))
	for _, e := range v {
		out = append(out, convert(e.(E)))
	}
	return out, err
}

func (m metadata) Has(key string) bool             { _, ok := m[key]; return ok }
func (m metadata) Bool(key string) (bool, error)   { return lookup[bool](m, key) }
func (m metadata) Text(key string) (string, error) { return lookup[string](m, key) }
func (m metadata) Uint(key string) (uint64, error) {
	f, err := lookup[float64](m, key)
	return uint64(f), err
}
func (m metadata) Texts(key string) ([]string, error) {
	return list(m, key, func(s string) string { return s })
}
func (m metadata) Ints(key string) ([]int64, error) {
	return list(m, key, func(f float64) int64 { return int64(f) })
}
func (m metadata) Floats(key string) ([]float64, error) {
	return list(m, key, func(f float64) float64 { return f })
}

type ggufGolden struct {
	Metadata metadata
	Texts    []struct {
		Text        string
		IDs         []int32
		WithSpecial []int32 `json:"ids_with_special"`
	}
	Chats []struct {
		Rendered string
		IDs      []int32
	}
}

func ggufGoldens(t testing.TB) map[string]ggufGolden {
	t.Helper()
	text, err := testgz.ReadFile("testdata/gguf.json")
	require.NoError(t, err)
	out := map[string]ggufGolden{}
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

// loadGGUF reads metadata and makes the tokenizer, twice.
func loadGGUF(m Metadata) (*Tokenizer, error) {
	load, err := FromGGUF(m)
	if err != nil {
		return nil, err
	}
	t, err := load()
	if again, failed := load(); again != t || failed != err {
		return nil, errors.New("the second call gave another tokenizer")
	}
	return t, err
}

// TestGGUF: the ids of Hugging Face's tokenizers and of SentencePiece, for vocabularies
// in GGUF metadata.
func TestGGUF(t *testing.T) {
	checks := 0
	for name, g := range ggufGoldens(t) {
		tok, err := loadGGUF(g.Metadata)
		require.NoError(t, err, name)
		for _, c := range g.Texts {
			require.Equal(t, c.IDs, tok.Encode(c.Text, EncodeOptions{}), "%s: %q", name, c.Text)
			require.Equal(t, c.WithSpecial, tok.Encode(c.Text, EncodeOptions{AddSpecial: true}), "%s: %q", name, c.Text)
			require.Equal(t, c.Text, tok.Decode(c.IDs, true), name)
			checks += 3
		}
		for _, c := range g.Chats {
			require.Equal(t, c.IDs, tok.Encode(c.Rendered, EncodeOptions{}), "%s: %q", name, c.Rendered)
			checks++
		}
	}
	t.Logf("golden GGUF vocabularies: %d checks", checks)
}

// with returns a copy with other values; nil removes a key.
func (m metadata) with(pairs ...any) metadata {
	out := metadata{}
	for k, v := range m {
		out[k] = v
	}
	for i := 0; i < len(pairs); i += 2 {
		if out["tokenizer.ggml."+pairs[i].(string)] = pairs[i+1]; pairs[i+1] == nil {
			delete(out, "tokenizer.ggml."+pairs[i].(string))
		}
	}
	return out
}

func TestGGUFRefuses(t *testing.T) {
	goldens := ggufGoldens(t)
	bytes, pieces := goldens["llama3"].Metadata, goldens["spm"].Metadata
	for _, c := range []struct {
		m           metadata
		want        string
		unsupported bool
	}{
		{bytes.with("model", "t5"), `vocabulary of type "t5", expected gpt2, gemma4 or llama`, true},
		{bytes.with("pre", "kimi-k2"), `pre-tokenizer "kimi-k2" is not known, expected one of `, true},
		{bytes.with("pre", nil), `pre-tokenizer "default" is not known`, true},
		{bytes.with("tokens", nil), "tokens", false},
		{bytes.with("merges", nil), "merges", false},
		{bytes.with("merges", []any{"a"}), `merge 0: found "a", expected two tokens`, false},
		{bytes.with("token_type", []any{1.0}), "1 types of 333 tokens", false},
		{bytes.with("bos_token_id", 333.0), "token 333 of 333", false},
		{bytes.with("add_bos_token", 1.0), "add_bos_token", false},
		{pieces.with("scores", []any{1.0}), "1 scores of 333 tokens", false},
		{pieces.with("scores", nil), "scores", false},
		{pieces.with("tokens", append([]any{""}, pieces["tokenizer.ggml.tokens"].([]any)[1:]...)), "piece 0", false},
	} {
		_, err := loadGGUF(c.m)
		require.ErrorContains(t, err, c.want)
		require.Equal(t, c.unsupported, errors.Is(err, errors.ErrUnsupported), c.want)
	}
}

// TestGGUFAround: the file says what goes around a text; otherwise the kind of vocabulary does.
func TestGGUFAround(t *testing.T) {
	m := ggufGoldens(t)["llama3"].Metadata
	for _, c := range []struct {
		m           metadata
		first, last bool
	}{
		{m.with("add_bos_token", nil), true, false},
		{m.with("add_bos_token", false), false, false},
		{m.with("add_bos_token", nil, "pre", "glm4"), false, false},
		{m.with("add_eos_token", true), true, true},
		{m.with("bos_token_id", nil), false, false},
	} {
		tok, err := loadGGUF(c.m)
		require.NoError(t, err)
		ids := tok.Encode("a", EncodeOptions{AddSpecial: true})
		require.Equal(t, c.first, ids[0] == 325, c)
		require.Equal(t, c.last, ids[len(ids)-1] == 326, c)
	}
}

// TestGGUFPhi3: the special tokens of Phi-3 take the blanks after them.
func TestGGUFPhi3(t *testing.T) {
	m := ggufGoldens(t)["phi3"].Metadata
	tok, err := loadGGUF(m)
	require.NoError(t, err)
	end, ok := tok.ID("<|end|>")
	require.True(t, ok)
	require.Equal(t, []int32{end}, tok.Encode("<|end|>\n ", EncodeOptions{}))
	m["general.architecture"] = "llama"
	tok, err = loadGGUF(m)
	require.NoError(t, err)
	require.Greater(t, len(tok.Encode("<|end|>\n ", EncodeOptions{})), 1)
}

// TestGGUFEscaped: pieces of SentencePiece with merges in the order of their scores give
// the same ids.
func TestGGUFEscaped(t *testing.T) {
	g := ggufGoldens(t)["spm"]
	tokens, scores, kinds := g.Metadata["tokenizer.ggml.tokens"].([]any), g.Metadata["tokenizer.ggml.scores"].([]any), g.Metadata["tokenizer.ggml.token_type"].([]any)
	type merge struct {
		score float64
		line  string
	}
	var merges []merge
	for i, name := range tokens {
		name := name.(string)
		if kinds[i].(float64) != typeNormal {
			continue
		}
		for at := range name {
			if at > 0 && slices.Contains(tokens, any(name[:at])) && slices.Contains(tokens, any(name[at:])) {
				merges = append(merges, merge{scores[i].(float64), name[:at] + " " + name[at:]})
			}
		}
	}
	slices.SortStableFunc(merges, func(a, b merge) int {
		if a.score > b.score {
			return -1
		}
		return 1
	})
	var lines []any
	for _, m := range merges {
		lines = append(lines, m.line)
	}
	tok, err := loadGGUF(g.Metadata.with("model", "gemma4", "merges", lines, "scores", nil))
	require.NoError(t, err)
	spm, err := loadGGUF(g.Metadata.with("add_space_prefix", false))
	require.NoError(t, err)
	for _, c := range g.Texts {
		require.Equal(t, spm.Encode(c.Text, EncodeOptions{AddSpecial: true}), tok.Encode(c.Text, EncodeOptions{AddSpecial: true}), c.Text)
		require.Equal(t, c.Text, tok.Decode(tok.Encode(c.Text, EncodeOptions{}), true))
	}
}

// TestGGUFPreTokenizers: each name splits texts as the pattern of its model does.
func TestGGUFPreTokenizers(t *testing.T) {
	for _, p := range ggufPre {
		for _, name := range p.names {
			pre, err := GGUFPreTokenizer(name)
			require.NoError(t, err)
			for _, part := range []string{pre.PreTokenizer, pre.Decoder} {
				require.True(t, json.Valid([]byte(part)), part)
			}
		}
	}
	const text = "I'LL pay 12345 x\u0302udes/\r\nFOObar  foo_bar中文ひら\t!x"
	for name, want := range map[string]string{
		"gpt-2":       "I|'|LL| pay| 12345| x|\u0302|udes|/|\r|\n|FOObar| | foo|_|bar中文ひら|\t|!|x",
		"refact":      "I|'|LL| pay| |1|2|3|4|5| x|\u0302|udes|/|\r|\n|FOObar| | foo|_|bar中文ひら|\t|!|x",
		"llama-bpe":   "I|'LL| pay| |123|45| x|\u0302udes|/\r\n|FOObar| | foo|_bar中文ひら|\t|!x",
		"glm4":        "I|'LL| pay| |123|45| x|\u0302udes|/\r\n|FOObar| | foo|_bar中文ひら|\t|!x",
		"hunyuan":     "I|'LL| pay| |1|2|3|4|5| x|\u0302udes|/\r\n|FOObar| | foo|_bar中文ひら|\t|!x",
		"qwen35":      "I|'LL| pay| |1|2|3|4|5| x\u0302udes|/\r\n|FOObar| | foo|_bar中文ひら|\t|!x",
		"gpt-4o":      "I'LL| pay| |123|45| x\u0302udes|/\r\n|FOObar| | foo|_bar中文ひら|\t|!x",
		"tekken":      "I|'LL| pay| |1|2|3|4|5| x\u0302udes|/\r\n|FOObar| | foo|_bar中文ひら|\t|!x",
		"deepseek-v3": "I|'LL| pay| |123|45| x\u0302udes|/\r\n|FOObar| | foo|_bar|中文ひら|\t|!x",
	} {
		m := metadata{"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name, "tokenizer.ggml.merges": []any{}}
		var tokens []any
		for b := range 256 {
			tokens = append(tokens, toByteLevel(string([]byte{byte(b)})))
		}
		m["tokenizer.ggml.tokens"] = tokens
		require.Equal(t, want, strings.Join(stretches(t, m, text), "|"), name)
	}
}

// stretches returns the words into which the pre-tokenizer of a byte-level vocabulary splits
// a text: two bytes are in one word if they merge as soon as the vocabulary has a merge for them.
func stretches(t *testing.T, m metadata, text string) []string {
	var out []string
	from := 0
	for i := 1; i <= len(text); i++ {
		if i < len(text) {
			pair := toByteLevel(text[i-1:i]) + " " + toByteLevel(text[i:i+1])
			with := metadata{}
			for k, v := range m {
				with[k] = v
			}
			with["tokenizer.ggml.merges"] = []any{pair}
			with["tokenizer.ggml.tokens"] = append(slices.Clone(m["tokenizer.ggml.tokens"].([]any)), strings.Replace(pair, " ", "", 1))
			v, err := readGGUF(with)
			require.NoError(t, err)
			pre, err := GGUFPreTokenizer(with["tokenizer.ggml.pre"].(string))
			require.NoError(t, err)
			pre.Normalizer = "" // it widens spans
			load, err := v.withMerges(pre, hfModel{})
			require.NoError(t, err)
			tok, err := load()
			require.NoError(t, err)
			joined := false
			_, spans, err := tok.EncodeOffsets(t.Context(), text, EncodeOptions{})
			require.NoError(t, err)
			for _, s := range spans {
				joined = joined || s.Start == i-1 && s.End == i+1
			}
			if joined {
				continue
			}
		}
		out = append(out, text[from:i])
		from = i
	}
	return out
}

// TestEncodeNothing: no ids are an empty list, not null, also from a tokenizer's first call.
func TestEncodeNothing(t *testing.T) {
	for name, g := range ggufGoldens(t) {
		tok, err := loadGGUF(g.Metadata)
		require.NoError(t, err, name)
		require.NotNil(t, tok.Encode("", EncodeOptions{}), name)
	}
}

// TestGGUFManyMerges: merges that are read in parts are those of the whole list, and an
// error names the first line that is wrong, whichever part it is in.
func TestGGUFManyMerges(t *testing.T) {
	procs := runtime.GOMAXPROCS(4)
	defer runtime.GOMAXPROCS(procs)
	var tokens, lines []any
	for b := range 256 {
		tokens = append(tokens, toByteLevel(string([]byte{byte(b)})))
	}
	for n := 0; len(lines) < 3*mergePart; n++ {
		pair := [2]string{toByteLevel(string([]byte{byte(n >> 8)})), toByteLevel(string([]byte{byte(n)}))}
		tokens, lines = append(tokens, pair[0]+pair[1]), append(lines, pair[0]+" "+pair[1])
	}
	m := metadata{"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": lines}
	tok, err := loadGGUF(m)
	require.NoError(t, err)
	n := 0
	for m := range tok.model.merges.all {
		require.Equal(t, tok.model.pieces[m.to], tok.model.pieces[m.left]+tok.model.pieces[m.right])
		require.EqualValues(t, 256+m.rank, m.to)
		n++
	}
	require.Equal(t, len(lines), n)
	for _, wrong := range [][]int{{0}, {mergePart + 7}, {len(lines) - 1}, {mergePart + 9, 2*mergePart + 9}} {
		lines := slices.Clone(lines)
		for _, at := range wrong {
			lines[at] = "ab cd"
		}
		m["tokenizer.ggml.merges"] = lines
		_, err := loadGGUF(m)
		require.ErrorContains(t, err, fmt.Sprintf(`merge %d: "ab" "cd"`, wrong[0]))
	}
}
